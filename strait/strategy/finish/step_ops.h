// Operations that every way of ending a step is made of.
#pragma once

#include <cstdint>

#include "strait/draft/draft.h"

namespace strait::strategy {

/// An operand on one of the scalars.
program::Operand scalar(const draft::Draft& draft, const char* name, program::Access access,
                        int slot);
/// Declares `elements` fp64 that outlive the program; the number of the array.
int declare_scalars(draft::Draft& draft, const char* name, int64_t elements, program::Tier tier);

/// The sum of a scalar value over the ranks of the agreement's scope, behind all reductions.
program::Op sum_scalars(const draft::Draft& draft, const char* name);

/// A kernel on the optimizer's shard of a unit.
program::Op shard_op(const program::Kernel& kernel, const draft::Shard& shard);
/// The optimizer on a shard; with `results`, by what they say.
program::Op update_op(const draft::Draft& draft, const draft::Shard& shard, bool results);
/// The same and what publishes its weights. Where that begins with rounding them to bf16, the
/// update does it in its own pass over memory. What it leaves alone, because results are not
/// finite, must have been rounded before.
void add_update(const draft::Draft& draft, const draft::Shard& shard, bool results,
                std::vector<program::Node>& nodes);

/// Adds to "agreed" the squares of the reduced gradients: rank r those that it alone counts, so
/// that the sum over ranks is the whole norm under every placement.
void add_norms(draft::Draft& draft);

/// finish_step: what the next step starts from.
program::Op finish_op(const draft::Draft& draft);

}  // namespace strait::strategy
