// What attention takes apart from the products around it, to be timed: its kernels alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/config/run.h"
#include "strait/kernel/products.h"

namespace strait::measure {

/// Heads of so many queries, each behind as many keys: a block in which every pair is causal.
struct AttentionCase {
  int64_t tokens = 512, head_width = 64;
};
/// Of the heads of the run's model, where there is one, and of its context up to a length at which
/// a rate changes no more.
AttentionCase attention_of(const std::optional<Run>& run);

/// Forward and backward of a head on every thread (kernel/partial_attention.h). Not thread-safe.
class AttentionWork {
 public:
  /// In fp32, fp64 or bf16; that by `products`.
  AttentionWork(const AttentionCase& shape, Dtype dtype, int64_t threads,
                kernel::NarrowProducts products = kernel::NarrowProducts::kAutomatic);
  ~AttentionWork();
  AttentionWork(const AttentionWork&) = delete;
  AttentionWork& operator=(const AttentionWork&) = delete;

  /// On all threads, so often that starting them counts for nothing.
  void run();
  /// Of a run; multiply-adds count two, a backward as two forwards.
  double flops() const;
  /// Compares rows of the last run with attention by its definition, and sums of its gradients with
  /// what they must add up to. "" when they agree to within rounding, else both values.
  std::string check() const;

  /// One thread's head, in one type.
  class Head;

 private:
  AttentionCase shape_;
  int64_t repeats_ = 1;
  std::vector<std::unique_ptr<Head>> heads_;
};

}  // namespace strait::measure
