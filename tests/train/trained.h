// A finished training run as tests compare it: losses, hash, validation and every weight.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "strait/checkpoint/reader.h"
#include "tests/train/small_run.h"

namespace strait::test {

using MasterWeights = std::map<std::string, std::vector<double>>;  // by unit

struct Trained {
  std::vector<double> losses;
  std::string hash;
  MasterWeights units;
  double validation = std::nan("");  // the last one
};

/// From the newest checkpoint of a run.
inline MasterWeights master_weights(const std::string& run_dir, const Run& run) {
  MasterWeights units;
  const checkpoint::CheckpointReader reader(run_dir);
  const auto load = [&](const checkpoint::UnitRecord& unit, auto& values, Dtype dtype) {
    values.resize(static_cast<size_t>(unit.elements));
    reader.load({unit.name, checkpoint::kMaster, 0, unit.elements, dtype},
                std::as_writable_bytes(std::span(values)));
  };
  for (const checkpoint::UnitRecord& unit : reader.manifest().units) {
    std::vector<double>& values = units[unit.name];
    if (run.train.precision == "fp64") {
      load(unit, values, Dtype::kFloat64);
    } else {
      std::vector<float> narrow;
      load(unit, narrow, Dtype::kFloat32);
      values.assign(narrow.begin(), narrow.end());
    }
  }
  return units;
}

inline Trained trained(const Run& run, int64_t ranks, const std::string& run_dir) {
  const train::Outcome outcome = train_small(run, ranks, run_dir);
  Trained result{outcome.losses, outcome.parameter_hash, master_weights(run_dir, run)};
  if (!outcome.validation.empty()) result.validation = outcome.validation.back().loss;
  return result;
}

/// |a - b| relative to |b|.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

/// The largest of a unit.
inline double distance(const Trained& a, const Trained& b) {
  double worst = 0;
  for (const auto& [unit, values] : b.units)
    worst = std::max(worst, distance(a.units.at(unit), values));
  return worst;
}

}  // namespace strait::test
