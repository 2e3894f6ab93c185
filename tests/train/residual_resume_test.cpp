// Residuals of error feedback outlive a checkpoint: on the same ranks bit for bit, on others as
// their sum.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <map>

#include "strait/checkpoint/reader.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

using test::small_run;
using test::TemporaryFolder;
using test::train_small;

const std::string kTwoLevels =
    "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 10.0, latency_microseconds = 1.0 "
    "}, "
    "{ name = \"world\", size = 0, gb_per_second = 1.0, latency_microseconds = 5.0 }]";

class ResidualResume : public ::testing::Test {
 protected:
  strait::Run run_of(std::vector<std::string> sets) {
    sets.push_back(kTwoLevels);
    return small_run(folder_.path(), sets);
  }
  TemporaryFolder folder_;
};

/// Sum over the senders of a run's residuals, by state, unit and element.
std::map<std::string, std::vector<double>> owed(const std::string& run_dir) {
  std::map<std::string, std::vector<double>> sums;
  const checkpoint::CheckpointReader reader(run_dir);
  for (const checkpoint::ShardRecord& shard : reader.manifest().shards) {
    const checkpoint::StateRange& range = shard.range;
    if (range.sender == checkpoint::kNoSender) continue;
    std::vector<float> values(static_cast<size_t>(range.elements()));
    reader.load(range, std::as_writable_bytes(std::span(values)));
    std::vector<double>& sum = sums[range.state + range.unit];
    sum.resize(static_cast<size_t>(reader.manifest().unit(range.unit)->elements));
    for (size_t i = 0; i < values.size(); ++i)
      sum[static_cast<size_t>(range.begin) + i] += static_cast<double>(values[i]);
  }
  return sums;
}

// Checkpoints hold the residuals, and saving changes nothing: a run that was stopped and resumed
// ends with the bits of one that never saved in between.
TEST_F(ResidualResume, ResumedRunsEndWithTheSameBits) {
  for (const char* preset : {"ddp", "zero3", "hsdp", "zero++", "zero-topo"}) {
    const auto with = [&](const char* steps, const char* resume, const char* every) {
      return run_of({std::string("placement.preset=") + preset, "train.precision=fp32",
                     "placement.codecs.gradients=int4/64+ef",
                     std::string("checkpoint.every_steps=") + every, "optimizer.decay_steps=12",
                     std::string("train.steps=") + steps,
                     std::string("checkpoint.resume=") + resume});
    };
    const std::string whole = folder_.path() + "/w" + preset,
                      parts = folder_.path() + "/p" + preset;
    const std::string want = train_small(with("12", "never", "0"), 4, whole).parameter_hash;
    train_small(with("5", "never", "2"), 4, parts);
    EXPECT_EQ(train_small(with("12", "auto", "3"), 4, parts).parameter_hash, want) << preset;
  }
}

// A run that goes on with other ranks owes what it owed: each sender begins with its share of the
// sum.
TEST_F(ResidualResume, OtherRanksShareTheResiduals) {
  const auto with = [&](const std::string& preset, const std::string& resume, const char* steps) {
    return run_of({"placement.preset=" + preset, "train.precision=fp32",
                   "placement.codecs.gradients=int4/64+ef", "optimizer.decay_steps=12",
                   std::string("train.steps=") + steps, "checkpoint.resume=" + resume});
  };
  const std::string saved = folder_.path() + "/saved";
  train_small(with("zero++", "never", "4"), 4, saved);
  const auto before = owed(saved);
  ASSERT_GT(before.size(), 4u);
  for (const auto& [preset, ranks] : std::vector<std::pair<std::string, int64_t>>{
           {"zero3", 2}, {"ddp", 4}, {"zero++", 6}, {"zero-topo", 8}}) {
    strait::Run run = with(preset, saved, "12");
    run.output.run_dir = folder_.path() + "/" + preset;
    const std::atomic<int> stop{SIGTERM};  // before the first step: it loads and saves
    train::Outcome outcome;
    train::train(make_job(run, ranks), {}, stop, outcome);
    const auto after = owed(run.output.run_dir);
    for (const auto& [name, sum] : after) {
      double apart = 0, largest = 0;
      for (size_t i = 0; i < sum.size(); ++i) {
        apart = std::max(apart, std::abs(sum[i] - before.at(name)[i]));
        largest = std::max(largest, std::abs(sum[i]));
      }
      EXPECT_GT(largest, 0) << name;
      EXPECT_LE(apart, 1e-5 * largest) << name << " on " << ranks << " " << preset;
    }
    EXPECT_GE(after.size(), before.size() / 2) << ranks;
  }
}

}  // namespace
}  // namespace strait
