#include "strait/strategy/pipeline/kernels.h"

namespace strait::strategy {

using program::Bound;
using program::kAdds;
using program::kReads;
using program::kWrites;

const program::Kernel kEncodeActivation = {
    "encode_activation",
    Bound::kCodec,
    {{"numbers", kReads}, {"piece", kWrites}, {"agreed", kAdds}},
    {}};

const program::Kernel kDecodeActivation = {
    "decode_activation", Bound::kCodec, {{"piece", kReads}, {"numbers", kWrites}}, {}};

}  // namespace strait::strategy
