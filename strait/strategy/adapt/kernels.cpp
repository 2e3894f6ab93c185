#include "strait/strategy/adapt/kernels.h"

namespace strait::strategy {

using program::AttributeType;
using program::kReads;
using program::kUpdates;

const program::Kernel kGatherGradient = {
    "gather_gradient",
    program::Bound::kNothing,
    {{"gradient", kReads}, {"results", kReads}, {"gathered", kUpdates}},
    {{"step", AttributeType::kIndex},
     {"start", AttributeType::kInteger},
     {"every", AttributeType::kInteger},
     {"steps", AttributeType::kInteger}}};

}  // namespace strait::strategy
