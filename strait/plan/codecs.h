// Codecs as a choice of the plan: what a placement sends in fewer bits than it computes with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/config/run.h"
#include "strait/strategy/compose/design.h"

namespace strait::plan {

/// The codec of numbers that are sent as a step computes with them: 16 bits, or none.
std::string plain_codec(const Run& run);

/// Whether a codec sends fewer bits than that.
bool compresses(const Run& run, const codec::CodecSpec& spec);

/// How many of weights, secondary weights, updates, gradients and activations are sent in fewer
/// bits than that.
int64_t compressed_kinds(const strategy::Design& design);
inline bool compresses(const strategy::Design& design) { return compressed_kinds(design) > 0; }

/// The run without the codecs that its preset brings; those that are written stay.
Run without_codecs(Run run);

/// The same run with gradients in int4/128, and with what else its placement sends, weights or
/// updates, in int8/2048 too: the codecs of zero++ and zero-topo. Nothing where the design
/// compresses already or the run writes codecs of its own.
std::vector<Run> with_codecs(const strategy::Design& design);

/// Codecs that the plan has chosen: "gradients int4/128, update int8/2048"; "" where it chose none.
std::string codecs_text(const Run& run);

}  // namespace strait::plan
