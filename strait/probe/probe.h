// What this machine can do, measured the way a run uses it: all ranks at once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strait/config/run.h"
#include "strait/kernel/products.h"
#include "strait/probe/probe_work.h"
#include "strait/topology/cluster.h"

namespace strait::measure {

struct ProbeOptions {
  int64_t ranks = 0;                  // thread ranks; 0 = available cores
  int64_t threads_per_rank = 0;       // 0 = cores / ranks, at least 1
  int64_t gemm_size = 1024;           // m = n = k of the products
  int64_t copy_bytes = 256 << 20;     // per rank; beyond any cache
  int64_t codec_elements = 3 << 20;   // of a vector that is encoded and decoded: a block's weights
  int64_t transfer_bytes = 64 << 20;  // vector of the timed all-gather
  int64_t runs = 7;                   // at least 5; medians are taken
  kernel::NarrowProducts products = kernel::NarrowProducts::kAutomatic;       // of bf16
  kernel::NarrowProducts wide_products = kernel::NarrowProducts::kAutomatic;  // of fp32
  kernel::NarrowProducts products_of(Dtype dtype) const {
    return dtype == Dtype::kFloat32 ? wide_products : products;
  }
  /// Whole blocks are of its model, with its micro-batch; none = of a GPT.
  std::optional<Run> run = {};
};

/// Rates are of one rank while all ranks are busy.
struct ProbeResult {
  int64_t ranks = 1, threads_per_rank = 1, cores = 1;
  int64_t ranks_per_machine = 1, cores_per_machine = 1;  // under one kernel, whatever the hosts
  double fp32_flops_per_second = 0.0;
  double fp64_flops_per_second = 0.0;
  std::optional<double> bf16_flops_per_second;  // empty: no hardware for it
  /// Forward and backward of a whole block without its attention, and of that; 0 = not measured.
  double fp32_model_flops_per_second = 0.0, bf16_model_flops_per_second = 0.0;
  double fp32_weights_per_second = 0.0, bf16_weights_per_second = 0.0;  // as Cluster's
  double fp32_attention_flops_per_second = 0.0, fp64_attention_flops_per_second = 0.0,
         bf16_attention_flops_per_second = 0.0;
  double codec_bytes_per_second =
      0.0;  // encode and decode, bytes read plus written; 0 = not measured
  double memcpy_bytes_per_second = 0.0;  // bytes read plus written
  double streaming_bytes_per_second = 0.0;
  double copy_bytes_per_second() const;  // the better of the two
  double attention_flops_per_second(Dtype dtype) const;
  /// Of one rank: what has been measured so far of what blocks are told apart by.
  OtherRates other_rates(Dtype dtype) const;
  int64_t memory_bytes = 0;  // physical, or the control group's limit, over ranks
  /// Transport between thread ranks by all-gather: bytes that a rank receives over the time of a
  /// large one, and the whole time of one of 8 bytes per rank. A world of one has neither: the copy
  /// rate, and no latency.
  double transport_bytes_per_second = 0.0;
  double transport_latency_seconds = 0.0;
  std::string block;       // that was timed: "gpt2, 512 wide, 4 x 128 tokens"
  bool processes = false;  // ranks were processes, on one host or several
  std::vector<Level>
      levels;  // measured one by one; empty: one level, "world", of the transport above
};

/// Fills in the rates of attention, and then those of whole blocks, which rest on them: timed by
/// these functions in each type that has a rate. What products alone reached is raised to them
/// where it is less, so that nothing passes it.
void fill_block_rates(ProbeResult& result, const std::function<double(Dtype)>& attention_rate,
                      const std::function<BlockRates(Dtype)>& rates_of_blocks);

/// Measures. Blocking: about (gemm_size / 1000)^3 + copy_bytes / 1e8 seconds. Every product, copy
/// and transfer is verified before it is timed; InternalError when one is wrong. UserError for
/// ranks < 0 or runs < 5, and as block_of_run.
ProbeResult probe(const ProbeOptions& options = {});

/// The measured machine as a cluster.
Cluster probe_cluster(const ProbeResult& result);

/// The cluster file: a comment that says how it was measured, then what config's parse_cluster_file
/// reads.
std::string render_cluster_file(const ProbeResult& result);

}  // namespace strait::measure
