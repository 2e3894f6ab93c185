// A run that is stopped and goes on with other ranks, placements and micro-batches is the same run:
// the same sequences in the same steps, the same masks of dropout, the losses and weights of one
// that was never stopped. Residuals of error feedback outlive a checkpoint: on the same ranks bit
// for bit, on others as their sum.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <map>
#include <mutex>
#include <set>

#include "strait/checkpoint/reader.h"
#include "tests/train/residuals.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

using test::small_run;
using test::TemporaryFolder;
using test::train_small;

/// Part of a run: up to step `until`, on `ranks` ranks.
struct Part {
  int64_t until = 0;
  int64_t ranks = 1;
  std::vector<std::string> sets;
  std::string backend = "threads";
};

struct Case {
  std::string name;
  std::vector<Part> parts;
  bool same_layout = false;  // all parts: the bits must be equal too
};

constexpr int64_t kSteps = 18;

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"4 zero3, 2 ddp, 3 hsdp",
       {{6, 4, {"placement.preset=zero3"}},
        {12, 2, {"placement.preset=ddp", "train.micro_batch_size=4"}},
        {kSteps, 3, {"placement.preset=hsdp"}}}},
      {"4 zero3, 2 ddp, 3 zero1",
       {{5, 4, {"placement.preset=zero3", "train.micro_batch_size=2"}},
        {11, 2, {"placement.preset=ddp"}},
        {kSteps, 3, {"placement.preset=zero1", "train.micro_batch_size=2"}}}},
      {"1 ddp, 8 mics, 4 zero2, 1 zero3",
       {{3, 1, {"placement.preset=ddp"}},
        {7, 8, {"placement.preset=mics"}},
        {8, 4, {"placement.preset=zero2"}},
        {kSteps, 1, {"placement.preset=zero3"}}}},
      {"saved asynchronously and not, by 3 and 2",
       {{7, 3, {"checkpoint.asynchronous=false", "checkpoint.every_steps=2"}},
        {kSteps, 2, {"checkpoint.every_steps=1", "checkpoint.keep=2"}}}},
      {"4 zero3, as it was",
       {{6, 4, {"placement.preset=zero3"}},
        {12, 4, {"placement.preset=zero3"}},
        {kSteps, 4, {"placement.preset=zero3"}}},
       true},
  };
  return all;
}

/// What the ranks loaded: by step, the sequences with their tokens, each once.
using Loaded = std::map<int64_t, std::map<int64_t, std::vector<int32_t>>>;

struct Result {
  train::Outcome outcome;
  std::map<std::string, std::vector<double>> units;  // master weights
};

std::map<std::string, std::vector<double>> weights_of(const std::string& run_dir) {
  std::map<std::string, std::vector<double>> units;
  const checkpoint::CheckpointReader reader(run_dir);
  for (const checkpoint::UnitRecord& unit : reader.manifest().units) {
    std::vector<double>& values = units[unit.name];
    values.resize(static_cast<size_t>(unit.elements));
    reader.load({unit.name, checkpoint::kMaster, 0, unit.elements, Dtype::kFloat64},
                std::as_writable_bytes(std::span(values)));
  }
  return units;
}

class Resume : public ::testing::Test {
 protected:
  Result train(const Part& part, const std::string& name, Loaded& loaded) {
    std::vector<std::string> sets = {"train.steps=" + std::to_string(part.until),
                                     "optimizer.decay_steps=" + std::to_string(kSteps),
                                     "model.shape.dropout=0.1",
                                     "checkpoint.resume=auto",
                                     "output.run_dir=" + folder_.path() + "/" + name,
                                     "runtime.backend=" + part.backend};
    sets.insert(sets.end(), part.sets.begin(), part.sets.end());
    train::Observer observer;
    observer.loaded = [&](int64_t step, const BatchBuffer& batch) {
      const std::lock_guard lock(mutex_);
      const size_t context = batch.inputs.size() / batch.sequences.size();
      for (size_t row = 0; row < batch.sequences.size(); ++row) {
        const auto begin = batch.inputs.begin() + static_cast<int64_t>(row * context);
        const bool fresh =
            loaded[step]
                .try_emplace(batch.sequences[row], begin, begin + static_cast<int64_t>(context))
                .second;
        EXPECT_TRUE(fresh) << "sequence " << batch.sequences[row] << " twice in step " << step;
      }
    };
    const std::string run_dir = folder_.path() + "/" + name;
    Result result;
    result.outcome = train_small(small_run(folder_.path(), sets), part.ranks, run_dir, observer);
    result.units = weights_of(run_dir);
    return result;
  }

  TemporaryFolder folder_;
  std::mutex mutex_;
};

// As in equality_test.cpp: sums in another order differ by a few units of 2^-53 per step.
constexpr double kTolerance = 1e-9;

TEST_F(Resume, OtherRanksAndPlacementsGoOnWithTheSameRun) {
  for (const Case& test : cases()) {
    const std::string& name = test.name;
    Loaded want_loaded, loaded;
    Part whole = test.parts.front();
    whole.until = kSteps;
    const Result want = train(whole, name + " whole", want_loaded);
    Result got;
    for (const Part& part : test.parts) got = train(part, name, loaded);

    EXPECT_EQ(want_loaded.size(), static_cast<size_t>(kSteps)) << name;
    EXPECT_EQ(want_loaded.at(0).size(), 24u) << name;
    EXPECT_EQ(loaded, want_loaded) << name << ": another order of the data";
    ASSERT_EQ(got.outcome.losses.size(), want.outcome.losses.size()) << name;
    for (size_t step = 0; step < want.outcome.losses.size(); ++step)
      EXPECT_NEAR(got.outcome.losses[step], want.outcome.losses[step],
                  kTolerance * want.outcome.losses[step])
          << name << " step " << step;
    for (const auto& [unit, values] : want.units) {
      double difference = 0, norm = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        difference += std::pow(got.units.at(unit)[i] - values[i], 2);
        norm += values[i] * values[i];
      }
      EXPECT_LT(std::sqrt(difference / norm), kTolerance) << name << " " << unit;
    }
    if (test.same_layout) {
      EXPECT_EQ(got.outcome.parameter_hash, want.outcome.parameter_hash) << name;
    }
  }
}

TEST_F(Resume, MovingToAnotherLayoutChangesNoBit) {
  Loaded loaded;
  const std::string hash =
      train({4, 4, {"placement.preset=zero3"}}, "moved", loaded).outcome.parameter_hash;
  for (const Part& part : std::vector<Part>{{4, 2, {"placement.preset=ddp"}},
                                            {4, 3, {"placement.preset=hsdp"}},
                                            {4, 1, {"placement.preset=zero1"}}})
    EXPECT_EQ(train(part, "moved", loaded).outcome.parameter_hash, hash) << part.ranks;
}

// The position in the data is what was consumed, not steps times today's batch.
TEST_F(Resume, AnotherBatchSizeGoesOnWhereTheDataStopped) {
  Loaded loaded;
  train({4, 2, {}}, "sizes", loaded);  // 24 sequences per step
  train({6, 3, {"train.global_batch_size=9"}}, "sizes", loaded);
  train({7, 2, {"train.global_batch_size=12"}}, "sizes", loaded);
  std::set<int64_t> sequences;
  for (const auto& [step, batch] : loaded) {
    EXPECT_EQ(batch.size(), step < 4 ? 24u : (step < 6 ? 9u : 12u)) << step;
    for (const auto& [number, tokens] : batch)
      EXPECT_TRUE(sequences.insert(number).second) << number << " again in step " << step;
  }
  EXPECT_EQ(sequences.size(), 4u * 24 + 2 * 9 + 12);
  EXPECT_EQ(*sequences.rbegin(), 4 * 24 + 2 * 9 + 12 - 1) << "a sequence was left out";
  const checkpoint::CheckpointReader reader(folder_.path() + "/sizes");
  EXPECT_EQ(reader.manifest().sequences_consumed, 4 * 24 + 2 * 9 + 12);
}

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
  const auto before = test::owed(saved);
  ASSERT_GT(before.size(), 4u);
  for (const auto& [preset, ranks] : std::vector<std::pair<std::string, int64_t>>{
           {"zero3", 2}, {"ddp", 4}, {"zero++", 6}, {"zero-topo", 8}}) {
    strait::Run run = with(preset, saved, "12");
    run.output.run_dir = folder_.path() + "/" + preset;
    const std::atomic<int> stop{SIGTERM};  // before the first step: it loads and saves
    train::Outcome outcome;
    train::train(make_job(run, ranks), {}, stop, outcome);
    const auto after = test::owed(run.output.run_dir);
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

/// The disk is taken away once the first of two is complete.
TEST_F(Resume, AFailedRunReportsTheLastCheckpointThatIsComplete) {
  for (const char* asynchronous : {"true", "false"}) {
    const std::string run_dir = folder_.path() + "/" + asynchronous;
    const strait::Run run = small_run(
        folder_.path(), {"train.steps=4", "checkpoint.every_steps=1", "output.run_dir=" + run_dir,
                         std::string("checkpoint.asynchronous=") + asynchronous});
    std::string saved;
    train::Observer observer;
    observer.saved = [&](const std::string& path) {
      if (!saved.empty()) return;
      saved = path;
      // The other rank has begun its next save, and may make the folder anew between two steps.
      int file = -1;
      for (int moved = 0; file < 0; ++moved) {
        std::filesystem::rename(run_dir + "/checkpoints",
                                run_dir + "/away-" + std::to_string(moved));
        file = ::open((run_dir + "/checkpoints").c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
      }
      ::close(file);
    };
    const std::atomic<int> no_signal{0};
    train::Outcome outcome;
    EXPECT_THROW(train::train(make_job(run, 2), observer, no_signal, outcome), Error);
    ASSERT_NE(saved, "");
    EXPECT_EQ(outcome.checkpoint, saved) << asynchronous;
  }
}

TEST_F(Resume, SavesWaitWhereNoCopyOfTheStateFits) {
  std::vector<std::string> hashes;
  for (const bool fits : {true, false}) {
    const std::string run_dir = folder_.path() + (fits ? "/fits" : "/waits");
    Job job = make_job(small_run(folder_.path(), {"train.steps=4", "checkpoint.every_steps=1",
                                                  "output.run_dir=" + run_dir}),
                       2);
    if (!fits) job.spare_memory_bytes = 100;
    int saves = 0;
    std::string warning;
    train::Observer observer;
    observer.saved = [&](const std::string&) { ++saves; };
    observer.warned = [&](const std::string& what) { warning = what; };
    hashes.push_back(test::outcome_of(job, {}, observer).parameter_hash);
    EXPECT_EQ(saves, 4);
    EXPECT_EQ(warning.empty(), fits) << warning;
    if (!fits) EXPECT_NE(warning.find("checkpoint.asynchronous"), std::string::npos);
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace strait
