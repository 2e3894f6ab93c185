// Which messages wait for their receivers.
#pragma once

#include <cstdint>

namespace strait::collective {

/// Messages up to this length are sent unasked: they pass a link one behind the other, and lie with
/// the receiver until it takes them. Longer ones, beside which a gap is short, begin when the
/// receiver has asked for them, so that they take no memory but the one they are meant for.
inline constexpr int64_t kMostUnaskedBytes = int64_t{1} << 20;

}  // namespace strait::collective
