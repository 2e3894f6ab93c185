// [cluster] and [mesh] of the run file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace strait {

/// One level of links, as written by the user. Bandwidth is per direction.
struct LevelOptions {
  std::string name;
  int64_t size = 0;  // fan-out; 0 = the rest
  double gb_per_second = 0.0;
  double latency_microseconds = 0.0;
  int64_t links = 1;             // links that leave one group of the level below
  double processor_share = 0.0;  // of a rank's processor time, while the level is busy
};

/// What this machine was seen to do, instead of what the preset localhost assumes. Of one rank with
/// `cores_per_rank` cores while all cores are busy; 0 = not measured.
struct MeasuredRates {
  int64_t cores_per_rank = 1;
  /// Who shares the machine's cores; 0 ranks: all of them, 0 cores: not known.
  int64_t ranks_per_machine = 0, cores_per_machine = 0;
  double flops_per_second_fp32 = 0, flops_per_second_fp64 = 0, flops_per_second_bf16 = 0;
  double model_flops_per_second_fp32 = 0, model_flops_per_second_bf16 = 0;  // without attention
  double attention_flops_per_second_fp32 = 0, attention_flops_per_second_fp64 = 0,
         attention_flops_per_second_bf16 = 0;
  double weights_per_second_fp32 = 0, weights_per_second_bf16 = 0;  // as Cluster's
  double memory_bytes_per_second = 0;                               // copies, read + write
  int64_t memory_bytes_per_machine = 0;  // that its ranks may use together; 0 = not known
  /// Of LibTorch, in the type that was measured; as Cluster's.
  double library_flops_per_second = 0, library_activations_per_second = 0,
         library_calls_per_second = 0;
};

/// Exactly one of preset, file, levels.
struct ClusterOptions {
  std::string preset = "localhost";
  std::string file;
  std::vector<LevelOptions> levels;
  double compute_share = 1.0;  // of a preset's peak rates, what blocks of a model reach; in (0, 1]
  /// No key: filled in by the program that measures. Takes effect where rates are localhost's.
  std::optional<MeasuredRates> measured;
};

struct MeshAxes {
  int64_t x = 1, y = 1, z = 1, sequence = 1, data = 0, stage = 1;  // 0 = the rest
};

struct MeshOptions {
  MeshAxes axes;
  std::vector<std::string> order = {"x", "y", "z", "sequence", "data", "stage"};
};

}  // namespace strait
