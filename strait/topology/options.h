// [cluster] and [mesh] of the run file.
#pragma once

#include <cstdint>
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

/// Exactly one of preset, file, levels.
struct ClusterOptions {
  std::string preset = "localhost";
  std::string file;
  std::vector<LevelOptions> levels;
};

struct MeshAxes {
  int64_t x = 1, y = 1, z = 1, sequence = 1, data = 0, stage = 1;  // 0 = the rest
};

struct MeshOptions {
  MeshAxes axes;
  std::vector<std::string> order = {"x", "y", "z", "sequence", "data", "stage"};
};

}  // namespace strait
