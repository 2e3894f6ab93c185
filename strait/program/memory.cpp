#include "strait/program/memory.h"

#include <utility>

#include "strait/program/lifetime.h"

namespace strait::program {

namespace {

int64_t& category(MemoryUse& use, Category which) {
  switch (which) {
    case Category::kWeights:
      return use.weights;
    case Category::kSecondary:
      return use.secondary;
    case Category::kGradients:
      return use.gradients;
    case Category::kOptimizer:
      return use.optimizer;
    case Category::kActivations:
      return use.activations;
    case Category::kBuffers:
      break;
  }
  return use.buffers;
}

/// Bytes in use while a program runs.
class Meter {
 public:
  Meter(const Program& program, int64_t rank)
      : program_(program), tracker_(program), now_(resident_memory(program, rank)), peak_(now_) {
    for (const ValueArray& array : program.arrays)
      bytes_.push_back(value_bytes(program, array, rank));
  }

  void step(const Op& op, const std::vector<int64_t>& loops) {
    const StepPlan& plan = tracker_.next(op, loops);
    if (!plan.wait_for.empty()) release_workspaces();
    change(plan.release_before, -1);
    change(plan.allocate, 1);
    now_.buffers += op.workspace_bytes;
    total_ += op.workspace_bytes;
    if (total_ > peak_total_) record();
    if (plan.communication < 0) {
      now_.buffers -= op.workspace_bytes;
      total_ -= op.workspace_bytes;
    } else if (op.workspace_bytes > 0) {
      workspaces_.emplace_back(plan.communication, op.workspace_bytes);
    }
    change(plan.release_after, -1);
  }

  const MemoryUse& peak() const { return peak_; }

 private:
  void change(const std::vector<int64_t>& slots, int64_t sign) {
    for (const int64_t slot : slots) {
      const int array = tracker_.slots().array_of(slot);
      category(now_, program_.arrays[array].category) += sign * bytes_[array];
      total_ += sign * bytes_[array];
    }
  }

  void record() {
    peak_ = now_;
    peak_total_ = total_;
  }

  void release_workspaces() {
    std::erase_if(workspaces_, [&](const std::pair<int64_t, int64_t>& workspace) {
      if (!tracker_.known_ended(workspace.first)) return false;
      now_.buffers -= workspace.second;
      total_ -= workspace.second;
      return true;
    });
  }

  const Program& program_;
  LifetimeTracker tracker_;
  std::vector<int64_t> bytes_;                           // of one value, by array
  std::vector<std::pair<int64_t, int64_t>> workspaces_;  // of communication ops: (number, bytes)
  MemoryUse now_, peak_;
  int64_t total_ = now_.total(), peak_total_ = total_;
};

}  // namespace

MemoryUse resident_memory(const Program& program, int64_t rank) {
  MemoryUse use;
  for (const ValueArray& array : program.arrays) {
    if (array.lifetime == Lifetime::kTransient) continue;
    category(use, array.category) += array.count * value_bytes(program, array, rank);
  }
  return use;
}

MemoryUse peak_memory(const Program& program, int64_t rank) {
  Meter meter(program, rank);
  for_each_instance(
      program, [&](const Op& op, const std::vector<int64_t>& loops) { meter.step(op, loops); });
  return meter.peak();
}

}  // namespace strait::program
