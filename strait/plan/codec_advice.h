// Which codecs of a run are predicted to bring nothing on its cluster.
#pragma once

#include <string>
#include <vector>

#include "strait/strategy/compose/design.h"

namespace strait::plan {

/// One line for each codec of the placement (bf16 under precision bf16 aside) without which a step
/// is predicted to take no longer than 1 % more. `seconds`: the predicted step of `design`;
/// `corpus`: the one that it was made with, if any. Cost: one simulation per codec; nothing when
/// there is none.
std::vector<std::string> codec_advice(const strategy::Design& design, double seconds,
                                      const Corpus* corpus = nullptr);

}  // namespace strait::plan
