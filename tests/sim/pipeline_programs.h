// Pipelines in the order 1F1B, one class per stage.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/program/program_builder.h"

namespace strait::sim {

/// A kernel that takes `seconds` where a flop takes one.
inline program::Op timed_op(double seconds, std::vector<program::Operand> reads,
                            std::vector<program::Operand> writes) {
  program::Op op = program::work_op(program::kForward, {}, std::move(reads), std::move(writes));
  op.attributes[program::kFlops] = seconds;
  return op;
}

/// One stage of a pipeline of `stages`, each of `width` ranks one after another.
class StageBuilder {
 public:
  StageBuilder(int64_t stages, int64_t width, int64_t stage, int64_t elements)
      : builder_(stages * width, members(stage, width)), stages_(stages), stage_(stage) {
    chain_ = builder_.group("chain", stages, width);
    for (const char* name : {"x", "y", "d", "e"})
      builder_.array(name, kMost, program::Lifetime::kTransient, elements);
    gradient_ = builder_.array("g", 1, program::Lifetime::kResident, elements);
  }
  void forward(int64_t k) {
    if (stage_ > 0) builder_.receive(program::at(0, k), stage_ - 1, 1, chain_);
    compute(stage_ > 0 ? std::vector{program::at(0, k)} : std::vector<program::Operand>{},
            {program::at(1, k)}, 1);
    if (stage_ > 0) builder_.free(program::at(0, k));
    if (stage_ + 1 < stages_) {
      builder_.send(program::at(1, k), stage_ + 1, 1, chain_);
      builder_.free(program::at(1, k));
    }
  }
  void backward(int64_t k) {
    const bool last = stage_ + 1 == stages_;
    if (!last) builder_.receive(program::at(2, k), stage_ + 1, 2, chain_);
    compute({program::at(last ? 1 : 2, k)},
            {program::at(3, k), program::updated(program::at(gradient_))}, 2);
    builder_.free(program::at(last ? 1 : 2, k));
    if (stage_ > 0) builder_.send(program::at(3, k), stage_ - 1, 2, chain_);
    builder_.free(program::at(3, k));
  }
  program::Program take() { return builder_.take(); }

 private:
  static constexpr int64_t kMost = 64;
  static std::vector<int64_t> members(int64_t stage, int64_t width) {
    std::vector<int64_t> ranks(width);
    std::iota(ranks.begin(), ranks.end(), stage * width);
    return ranks;
  }
  void compute(std::vector<program::Operand> reads, std::vector<program::Operand> writes,
               double seconds) {
    builder_.add(timed_op(seconds, std::move(reads), std::move(writes)));
  }

  program::ProgramBuilder builder_;
  int64_t stages_, stage_;
  int chain_ = 0, gradient_ = 0;
};

/// 1F1B: forwards that fill the pipeline, then one backward per forward, then the rest.
inline std::vector<program::Program> one_forward_one_backward(int64_t stages, int64_t micro_batches,
                                                              int64_t width, int64_t elements) {
  std::vector<program::Program> classes;
  for (int64_t stage = 0; stage < stages; ++stage) {
    StageBuilder b(stages, width, stage, elements);
    const int64_t warm = std::min(stages - 1 - stage, micro_batches);
    for (int64_t k = 0; k < warm; ++k) b.forward(k);
    for (int64_t k = warm; k < micro_batches; ++k) {
      b.forward(k);
      b.backward(k - warm);
    }
    for (int64_t k = micro_batches - warm; k < micro_batches; ++k) b.backward(k);
    classes.push_back(b.take());
  }
  return classes;
}

}  // namespace strait::sim
