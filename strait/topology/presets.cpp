// Sources: [olcf] OLCF user documentation, Frontier user guide; [axonn] calibration table of
// AxoNN's communication model (examples/comm_model.py), GiB/s times 1.0737; [rccl] RCCL all-reduce
// sweep of 8 B on Frontier; [zeropp] DeepSpeed's ZeRO++ tutorial; [vendor] data sheets; [measured]
// on the 2-core development machine; [design] our assumption, to be replaced by `strait probe`.
#include "strait/topology/presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strait/base/errors.h"

namespace strait {
namespace {

constexpr int64_t kGibibyte = int64_t{1} << 30;

struct Preset {
  std::string name;
  std::vector<LevelOptions> levels;  // name, size, GB/s per direction and link, microseconds, links
  double fp32 = 0, fp64 = 0, bf16 = 0;  // FLOP/s of one rank
  double memory_bytes_per_second = 0;
  int64_t memory_bytes = 0;
  bool shares_cores = false;
};

std::vector<Preset> single_systems() {
  return {
      {"localhost",
       {{"world", 0, 10.0 /*memcpy 13.4 [measured]*/, 5.0 /*[design]*/, 1}},
       100e9 /*104 per core [measured]*/,
       50e9 /*half of fp32 [design]*/,
       220e9 /*oneDNN per core [measured]*/,
       13.4e9 /*[measured]*/,
       8 * kGibibyte /*[design]*/,
       true},
      {"frontier",  // a rank is one GCD of an MI250X
       {{"pair", 2, 200.0 /*[olcf]*/, 2.0 /*[design]*/, 1},
        // Two stride-2 rings at once reach 50 GiB/s each [axonn]: two links of 50 GB/s [olcf] per
        // pair.
        {"node", 4, 50.0 /*[olcf]*/, 4.0 /*54 us / 14 ring steps [rccl]*/, 2},
        {"world", 0, 25.0 /*Slingshot 200 Gb/s [olcf]*/, 11.0 /*per doubling of nodes [rccl]*/, 4}},
       47.85e12 /*matrix cores [vendor]*/,
       47.85e12 /*[vendor]*/,
       191.5e12 /*383 per MI250X [vendor]*/,
       1.6e12 /*[olcf]*/,
       64 * kGibibyte /*[olcf]*/,
       false},
      {"perlmutter",
       {{"node", 4, 241.6 /*225 GiB/s [axonn]*/, 3.0 /*[design]*/, 1},
        {"world", 0, 25.0 /*Slingshot-11 [vendor]*/, 10.0 /*[design]*/, 4}},
       19.5e12 /*[vendor]*/,
       19.5e12 /*[vendor]*/,
       312e12 /*[vendor]*/,
       1.555e12 /*[vendor]*/,
       40 * kGibibyte /*1,536 of 1,792 nodes [vendor]*/,
       false},
      {"alps",
       {{"node", 4, 450.0 /*NVLink4 [vendor]*/, 3.0 /*[design]*/, 1},
        {"world", 0, 25.0 /*Slingshot-11 [vendor]*/, 10.0 /*[design]*/, 4}},
       67e12 /*[vendor]*/,
       67e12 /*[vendor]*/,
       989e12 /*[vendor]*/,
       4.0e12 /*[vendor]*/,
       96 * kGibibyte /*[vendor]*/,
       false},
  };
}

std::vector<Preset> dgx_systems() {
  return {
      {"dgx-v100",  // DGX-2
       {{"node", 16, 150.0 /*NVSwitch [vendor]*/, 3.0 /*[design]*/, 1},
        {"world", 0, 12.5 /*InfiniBand 100 Gb/s [zeropp]*/, 10.0 /*[design]*/, 8 /*[zeropp]*/}},
       15.7e12 /*[vendor]*/,
       7.8e12 /*[vendor]*/,
       125e12 /*fp16, it has no bf16 [vendor]*/,
       0.9e12 /*[vendor]*/,
       32 * kGibibyte /*[zeropp]*/,
       false},
      {"dgx-a100",
       {{"node", 8, 300.0 /*NVSwitch, 600 both ways [vendor]*/, 3.0 /*[design]*/, 1},
        {"world", 0, 25.0 /*InfiniBand 200 Gb/s [vendor]*/, 10.0 /*[design]*/, 8 /*[vendor]*/}},
       19.5e12 /*[vendor]*/,
       19.5e12 /*[vendor]*/,
       312e12 /*[vendor]*/,
       2.039e12 /*[vendor]*/,
       80 * kGibibyte /*[vendor]*/,
       false},
      {"dgx-h100",
       {{"node", 8, 450.0 /*NVSwitch, 900 both ways [vendor]*/, 3.0 /*[design]*/, 1},
        {"world", 0, 50.0 /*InfiniBand 400 Gb/s [vendor]*/, 10.0 /*[design]*/, 8 /*[vendor]*/}},
       67e12 /*[vendor]*/,
       67e12 /*[vendor]*/,
       989e12 /*[vendor]*/,
       3.35e12 /*[vendor]*/,
       80 * kGibibyte /*[vendor]*/,
       false},
  };
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> table = [] {
    std::vector<Preset> all = single_systems();
    for (Preset& preset : dgx_systems()) all.push_back(std::move(preset));
    return all;
  }();
  return table;
}

const Preset& find_preset(const std::string& name) {
  for (const Preset& preset : presets())
    if (preset.name == name) return preset;
  ErrorPlace place;
  place.key = "cluster.preset";
  throw UserError(fmt::format("cluster.preset = \"{}\" is unknown; the nearest is \"{}\" ({})",
                              name, nearest_choice(name, cluster_preset_names()),
                              fmt::join(cluster_preset_names(), ", ")),
                  place);
}

}  // namespace

std::vector<LevelOptions> preset_levels(const std::string& preset) {
  return find_preset(preset).levels;
}

Cluster cluster_rates(const std::string& preset) {
  const Preset& found = find_preset(preset);
  Cluster cluster;
  cluster.name = found.name;
  cluster.rates_source = "preset " + found.name;
  cluster.flops_per_second_fp32 = found.fp32;
  cluster.flops_per_second_fp64 = found.fp64;
  cluster.flops_per_second_bf16 = found.bf16;
  cluster.memory_bytes_per_second = found.memory_bytes_per_second;
  cluster.memory_bytes = found.memory_bytes;
  cluster.shares_cores = found.shares_cores;
  return cluster;
}

const std::vector<std::string>& cluster_preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Preset& preset : presets()) result.push_back(preset.name);
    return result;
  }();
  return names;
}

}  // namespace strait
