// What tests of switches have in common: a small model, and the ops that a step of it is.
#pragma once

#include <string>
#include <vector>

#include "strait/job/job.h"
#include "strait/program/program.h"

namespace strait::test {

inline const std::vector<std::string> kThreeBlocks = {
    "train.clip_norm=0.3",      "runtime.threads_per_rank=1", "model.shape.layers=3",
    "model.shape.heads=4",      "model.shape.kv_heads=4",     "model.shape.width=16",
    "model.shape.ffn_width=24", "model.shape.vocabulary=24",  "model.shape.dropout=0.1"};

/// Of the first class of ranks, loops written out.
inline std::vector<program::Op> steady_ops(const Job& job) {
  std::vector<program::Op> ops;
  program::for_each_instance(
      job.design.steady().front(),
      [&](const program::Op& op, const program::Loops&) { ops.push_back(op); });
  return ops;
}

}  // namespace strait::test
