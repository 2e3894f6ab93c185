#include "strait/program/memory.h"

#include <algorithm>
#include <unordered_map>

#include "strait/program/classes.h"
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

void add(MemoryUse& use, const ValueArray& array, int64_t bytes) {
  category(use, array.category) += bytes;
  if (array.tier == Tier::kHost) use.host += bytes;
}

/// Bytes in use while a program runs.
class Meter {
 public:
  Meter(const Program& program, int64_t rank)
      : program_(program),
        tracker_(program),
        rank_(rank),
        now_(resident_memory(program, rank)),
        peak_(now_) {
    for (const ValueArray& array : program.arrays)
      bytes_.push_back(value_bytes(program, array, rank));
    alive_.assign(program.arrays.size(), 0);
  }

  void step(const Op& op, const std::vector<int64_t>& loops) {
    const StepPlan& plan = tracker_.next(op, loops);
    change(plan.release_before, -1);
    change(plan.allocate, 1);
    const int64_t workspace = workspace_of(op);
    now_.buffers += workspace;
    total_ += workspace;
    if (total_ > peak_total_) record();
    now_.buffers -= workspace;
    total_ -= workspace;
    change(plan.release_after, -1);
  }

  const MemoryUse& peak() const { return peak_; }

 private:
  void change(const std::vector<int64_t>& slots, int64_t sign) {
    for (const int64_t slot : slots) {
      const int array = tracker_.slots().array_of(slot);
      // Joined values take their memory with the first one and give it back with the last.
      const int64_t others = sign > 0 ? alive_[array]++ : --alive_[array];
      if (program_.arrays[array].joined && others > 0) continue;
      add(now_, program_.arrays[array], sign * bytes_[array]);
      total_ += sign * bytes_[array];
    }
  }

  void record() {
    peak_ = now_;
    peak_total_ = total_;
  }

  int64_t workspace_of(const Op& op) {
    if (op.kernel == nullptr) return 0;
    const auto [found, fresh] = workspaces_.try_emplace(&op, 0);
    if (fresh) found->second = bytes_beside_values(cost_of(program_, op, rank_));
    return found->second;
  }

  const Program& program_;
  LifetimeTracker tracker_;
  int64_t rank_;
  std::vector<int64_t> bytes_;                         // of one value, or all joined, by array
  std::vector<int64_t> alive_;                         // values of an array
  std::unordered_map<const Op*, int64_t> workspaces_;  // of kernels
  MemoryUse now_, peak_;
  int64_t total_ = now_.total(), peak_total_ = total_;
};

}  // namespace

MemoryUse resident_memory(const Program& program, int64_t rank) {
  MemoryUse use;
  for (const ValueArray& array : program.arrays) {
    if (array.lifetime == Lifetime::kTransient) continue;
    add(use, array, array.count * value_bytes(program, array, rank));
  }
  return use;
}

MemoryUse peak_memory(const Program& program, int64_t rank) {
  Meter meter(program, rank);
  for_each_instance(
      program, [&](const Op& op, const std::vector<int64_t>& loops) { meter.step(op, loops); });
  return meter.peak();
}

std::vector<MemoryUse> peak_memories(std::span<const Program> classes) {
  std::vector<MemoryUse> uses;
  for (const Program& program : classes) uses.push_back(peak_memory(program, first_rank(program)));
  return uses;
}

size_t largest(const std::vector<MemoryUse>& classes) {
  const auto found = std::max_element(
      classes.begin(), classes.end(),
      [](const MemoryUse& a, const MemoryUse& b) { return a.total() < b.total(); });
  return static_cast<size_t>(found - classes.begin());
}

}  // namespace strait::program
