// A finished training run as tests compare it: losses, hash and, in fp64, every weight.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "strait/checkpoint/reader.h"
#include "tests/train/small_run.h"

namespace strait::test {

struct Trained {
  std::vector<double> losses;
  std::string hash;
  std::map<std::string, std::vector<double>> units;  // zeros unless the run is in fp64
};

inline Trained trained(const Run& run, int64_t ranks, const std::string& run_dir) {
  const train::Outcome outcome = train_small(run, ranks, run_dir);
  Trained result{outcome.losses, outcome.parameter_hash, {}};
  const checkpoint::CheckpointReader reader(run_dir);
  for (const checkpoint::UnitRecord& unit : reader.manifest().units) {
    std::vector<double>& values = result.units[unit.name];
    values.resize(static_cast<size_t>(unit.elements));
    if (run.train.precision != "fp64") continue;
    reader.load({unit.name, checkpoint::kMaster, 0, unit.elements, Dtype::kFloat64},
                std::as_writable_bytes(std::span(values)));
  }
  return result;
}

/// Largest relative distance of a unit of `a` from that of `b`.
inline double distance(const Trained& a, const Trained& b) {
  double worst = 0;
  for (const auto& [unit, values] : b.units) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(a.units.at(unit)[i] - values[i], 2);
      norm += values[i] * values[i];
    }
    worst = std::max(worst, std::sqrt(difference / norm));
  }
  return worst;
}

}  // namespace strait::test
