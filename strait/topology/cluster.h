// The devices of a machine and the levels of links that join them, innermost first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/base/library_work.h"
#include "strait/topology/options.h"

namespace strait {

/// One level of links. `size` is the fan-out: how many groups of the level below (devices for the
/// innermost) form one group of this level. Bandwidth is per direction and link.
struct Level {
  std::string name;
  int64_t size = 1;
  double bytes_per_second = 0.0;
  double latency_seconds = 0.0;
  int64_t links = 1;  // links that one group of the level below has into this level
  double processor_share =
      0.0;  // what its transfers take of a rank's processor time while it is busy
};

/// A cluster laid out for `ranks` ranks: the product of level sizes is the number of ranks; the
/// outermost level takes "the rest". Innermost levels are contiguous in rank order.
struct Cluster {
  std::string name;           // preset or file
  std::vector<Level> levels;  // innermost first, at least one
  int64_t ranks = 1;
  double flops_per_second_fp32 = 0.0;  // per rank, dense GEMM
  double flops_per_second_fp64 = 0.0;
  double flops_per_second_bf16 = 0.0;
  double compute_share = 1.0;  // of those, what whole blocks reach where nobody has measured them
  double model_flops_per_second_fp32 = 0.0;  // per rank, whole blocks of a model; 0 = as products
  double model_flops_per_second_bf16 = 0.0;
  /// Per rank, attention alone; 0 = as whole blocks. Where given, blocks are without attention.
  double attention_flops_per_second_fp32 = 0.0;
  double attention_flops_per_second_fp64 = 0.0;
  double attention_flops_per_second_bf16 = 0.0;
  /// Per rank: numbers of weights that products of blocks pass over (their packing, reading and
  /// gradients) beside their operations, however few the rows; 0 = at no cost.
  double weights_per_second_fp32 = 0.0;
  double weights_per_second_bf16 = 0.0;
  /// Per rank, of blocks that LibTorch runs: its products; numbers through SiLU, a norm or a
  /// softmax (LibraryWork); its operations, however small. 0 = as model_flops_per_second; at no
  /// cost.
  double library_flops_per_second = 0.0;
  double library_activations_per_second = 0.0;
  double library_calls_per_second = 0.0;
  double memory_bytes_per_second = 0.0;  // per rank, copy (read + write)
  double codec_bytes_per_second = 0.0;  // per rank, encode and decode (read + write); 0 = as copies
  int64_t memory_bytes = 0;             // per rank
  int64_t cores_per_rank = 1;
  bool shares_cores = false;  // compute and transport use the same cores
  /// Of machines whose ranks (these many, one after another) take turns on fewer cores; 0 of both:
  /// every rank has its own.
  int64_t ranks_per_machine = 0, cores_per_machine = 0;
  /// Where the figures are from: "preset frontier", "measured on this machine", "cluster.levels", a
  /// file.
  std::string rates_source, links_source;

  /// Rates nobody has measured here.
  bool rates_are_assumed() const { return rates_source.starts_with("preset "); }

  /// Dense matrix products of a type, per rank.
  double flops_per_second(Dtype dtype) const {
    return dtype == Dtype::kFloat64  ? flops_per_second_fp64
           : dtype_bytes(dtype) == 2 ? flops_per_second_bf16
                                     : flops_per_second_fp32;
  }
  /// Forward and backward of a model's blocks in a type, per rank.
  double model_flops_per_second(Dtype dtype) const {
    const double measured = dtype == Dtype::kFloat32  ? model_flops_per_second_fp32
                            : dtype_bytes(dtype) == 2 ? model_flops_per_second_bf16
                                                      : 0.0;
    return measured > 0 ? measured : compute_share * flops_per_second(dtype);
  }
  /// Forward and backward of attention in a type, on long runs of tokens, per rank; a backward
  /// counts twice its forward.
  double attention_flops_per_second(Dtype dtype) const {
    const double measured = dtype == Dtype::kFloat64  ? attention_flops_per_second_fp64
                            : dtype_bytes(dtype) == 2 ? attention_flops_per_second_bf16
                                                      : attention_flops_per_second_fp32;
    return measured > 0 ? measured : model_flops_per_second(dtype);
  }
  /// Seconds that products take to pass over so many numbers of weights, whatever their rows.
  double weight_seconds(Dtype dtype, double weights) const {
    const double rate = dtype == Dtype::kFloat32  ? weights_per_second_fp32
                        : dtype_bytes(dtype) == 2 ? weights_per_second_bf16
                                                  : 0.0;
    return rate > 0 ? weights / rate : 0.0;
  }
  /// Multiplies the rates of products, blocks, attention and a library, of whose calls none is
  /// quicker for more threads.
  void scale_compute(double factor);
  /// Seconds of so many operations of a model's blocks, `attention_flops` of them in attention, on
  /// so many numbers of weights.
  double block_seconds(Dtype dtype, double flops, double attention_flops, double weights) const;
  /// Seconds of an operation that a library runs: its products, and the rest of its work.
  double library_seconds(Dtype dtype, double flops, const LibraryWork& work) const;
  /// Cores that a rank of so many threads has while all ranks compute.
  double cores_of_rank(int64_t threads) const;
  /// How many times faster a rank computes while the others of its machine do not; 1 where every
  /// rank has its own cores.
  double alone_speed() const {
    return static_cast<double>(cores_per_rank) / cores_of_rank(cores_per_rank);
  }
  /// Ranks in one group of level `level` (product of sizes up to and including it).
  int64_t group_size(int64_t level) const;
  /// Index of the outermost level whose boundary a message between two ranks crosses: the innermost
  /// level whose group holds both. Precondition: a != b.
  int64_t level_between(int64_t a, int64_t b) const;
};

/// "preset frontier", or "rates measured on this machine, links of preset localhost".
std::string source_text(const Cluster& cluster);
/// The same for a reader of predictions, whom a data sheet's peak would mislead: "preset frontier:
/// peak rates of data sheets, ...".
std::string figures_text(const Cluster& cluster);
/// What to print behind a prediction that rests on a preset's rates, such as " by preset frontier";
/// else "".
std::string prediction_note(const Cluster& cluster);

/// Names of the levels, innermost first.
std::vector<std::string> level_names(const Cluster& cluster);

/// Builds the cluster for `ranks` ranks from [cluster]. Errors (UserError): unknown preset, sizes
/// that do not divide the ranks; each names the nearest valid choice.
Cluster make_cluster(const ClusterOptions& options, int64_t ranks);
const std::vector<std::string>& cluster_preset_names();

}  // namespace strait
