// A finished training run as tests compare it: losses, hash, validation and every weight.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strait/base/errors.h"
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

/// Of every rank, the peak that was predicted and that of the allocator, to 5 %.
inline void expect_predicted_memory(const train::Outcome& outcome) {
  for (size_t rank = 0; rank < outcome.pool_peak_bytes.size(); ++rank)
    EXPECT_NEAR(static_cast<double>(outcome.predicted_peak_bytes[rank]),
                static_cast<double>(outcome.pool_peak_bytes[rank]),
                0.05 * static_cast<double>(outcome.pool_peak_bytes[rank]))
        << "rank " << rank;
}

/// What tests of the mesh share: runs that must equal one rank's.
class MeshRuns : public ::testing::Test {
 protected:
  std::string next_folder() { return folder_.path() + "/" + std::to_string(number_++); }

  /// In fp64: losses, validation and every tensor to 1e-9.
  static void expect_equal(const Trained& got, const Trained& want) {
    ASSERT_EQ(got.losses.size(), want.losses.size());
    for (size_t step = 0; step < want.losses.size(); ++step)
      ASSERT_NEAR(got.losses[step], want.losses[step], 1e-9 * want.losses[step]) << step;
    EXPECT_NEAR(got.validation, want.validation, 1e-9 * want.validation);
    EXPECT_LT(distance(got, want), 1e-9);
  }
  /// "key: what is wrong" of what `make` refuses.
  template <class Make>
  static std::string refusal_of(const Make& make) {
    try {
      make();
    } catch (const UserError& error) {
      return error.place().key.value_or("no key") + ": " + error.what();
    }
    return "accepted";
  }

  TemporaryFolder folder_;

 private:
  int number_ = 0;
};

/// The same for cases that one rank repeats by family and tying of the head. `Case` begins with the
/// three extents of a run, its placement, whether the head is tied, and the family.
template <class Case>
class MeshCases : public MeshRuns {
 protected:
  /// What a case sets, in words of the run file.
  virtual std::vector<std::string> sets_of(const Case& c) const = 0;
  strait::Run run_of(const Case& c, const std::vector<std::string>& more = {}) {
    std::vector<std::string> sets = sets_of(c);
    sets.insert(sets.end(), more.begin(), more.end());
    return small_run(folder_.path(), sets);
  }
  Trained train(const Case& c, const std::vector<std::string>& more = {}) {
    return trained(run_of(c, more), c.ranks(), next_folder());
  }
  /// The same on one rank.
  const Trained& serial(const Case& c) {
    const auto [found, fresh] = serial_.try_emplace({c.family, c.tied});
    if (fresh) found->second = train({1, 1, 1, "ddp", c.tied, c.family});
    return found->second;
  }

 private:
  std::map<std::pair<std::string, bool>, Trained> serial_;
};

}  // namespace strait::test
