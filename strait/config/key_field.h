// How a row of the key table reaches its field of a Run.
#pragma once

#include "strait/config/run.h"

namespace strait {

/// Function that reaches a field through a chain of members: kField<&Run::train,
/// &TrainOptions::steps>.
template <auto... Members>
constexpr auto kField = +[](Run& run) -> auto& {
  return (run.*....*Members);
};

}  // namespace strait
