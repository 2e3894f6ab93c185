// Counters that outlive a step lie in a checkpoint under addresses of their own; those of version
// 0.1, which wrote them into the manifest, still count.
#include "strait/persist/run_values.h"

#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/strategy/finish/step_values.h"
#include "tests/paths.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

/// Trains up to step `until`, going on from what lies in the run folder.
train::Outcome train_until(const test::TemporaryFolder& folder, const std::string& name,
                           int64_t until) {
  strait::Run run = test::small_run(folder.path(), {"checkpoint.resume=auto"});
  run.train.steps = until;
  run.optimizer.decay_steps = 20;
  return test::train_small(run, 2, folder.path() + "/" + name);
}

std::vector<double> progress_of(const checkpoint::CheckpointReader& reader) {
  std::vector<double> values(strategy::kNumProgress);
  reader.load({"", "progress", 0, strategy::kNumProgress, Dtype::kFloat64},
              std::as_writable_bytes(std::span(values)));
  return values;
}

TEST(RunValues, CountersAreSavedUnderTheirAddress) {
  const test::TemporaryFolder folder;
  train_until(folder, "run", 3);
  const checkpoint::CheckpointReader reader(folder.path() + "/run");
  EXPECT_EQ(progress_of(reader)[strategy::kUpdatesDone], 3);
  EXPECT_EQ(progress_of(reader)[strategy::kSequencesDone], 3 * 24);
  EXPECT_EQ(reader.manifest().extra.find("updates"), nullptr) << "each of them stands once";
}

// Two ranks of zero3, three steps of four sequences (tests/checkpoint/version_test.cpp).
TEST(RunValues, ARunOfVersionOneGoesOnFromItsCounters) {
  const std::string fixture = test::in_source("tests/fixtures/checkpoint-0.1");
  const test::TemporaryFolder folder;
  std::filesystem::copy(fixture, folder.path() + "/run", std::filesystem::copy_options::recursive);
  const std::string path = checkpoint::CheckpointReader(fixture).path() + "/run.toml";
  strait::Run run = parse_run(read_file(path), path, {"train.steps=5", "checkpoint.resume=auto"});
  std::string text;
  while (text.size() < 4000) text += "a ship in the strait has no other road\n";
  run.data.path = test::write_text(folder.path(), text);
  const train::Outcome outcome = test::train_small(run, 2, folder.path() + "/run");
  EXPECT_EQ(outcome.first_step, 3);
  const auto progress = progress_of(checkpoint::CheckpointReader(folder.path() + "/run"));
  EXPECT_EQ(progress[strategy::kUpdatesDone], 5);
  EXPECT_EQ(progress[strategy::kSequencesDone], 5 * 4);
}

/// A step that keeps one value of `elements` elements.
program::Program step_of(int64_t elements) {
  program::Program step;
  program::ValueArray array{"counters", 1, Dtype::kFloat64, {elements, elements}};
  array.lifetime = program::Lifetime::kResident;
  array.tier = program::Tier::kHost;
  array.address.state = "progress";
  step.arrays.push_back(std::move(array));
  return step;
}

TEST(RunValues, ElementsThatACheckpointLacksStayAsTheyAre) {
  const test::TemporaryFolder folder;
  train_until(folder, "run", 3);
  const checkpoint::CheckpointReader reader(folder.path() + "/run");
  memory::Pool pool;
  runtime::State state(pool, 0);
  const program::Program longer = step_of(strategy::kNumProgress + 1);
  state.bind(longer);
  const std::vector<double> before(strategy::kNumProgress + 1, -1.0);
  state.write("counters", before.data(), static_cast<int64_t>(before.size() * sizeof(double)));
  const persist::RunValues values(longer, state);
  values.load(reader);
  const auto after = state.read<double, strategy::kNumProgress + 1>("counters");
  EXPECT_EQ(after[strategy::kUpdatesDone], 3);
  EXPECT_EQ(after[strategy::kNumProgress], -1.0);
  ASSERT_EQ(values.records().size(), 1u);
  EXPECT_EQ(values.records()[0].elements, strategy::kNumProgress + 1);
}

TEST(RunValues, ElementsOfAnArrayAreValuesAndPartsOfRanksAreRefused) {
  const auto values_of = [](const auto& change) {
    program::Program step = step_of(4);
    step.groups = {{"world", 1, 1, 0}};
    change(step.arrays.front());
    memory::Pool pool;
    runtime::State state(pool, 0);
    state.bind(step);
    return persist::RunValues(step, state).records().size();
  };
  EXPECT_EQ(values_of([](program::ValueArray&) {}), 1u);
  EXPECT_EQ(values_of([](program::ValueArray& array) { array.count = 2; }), 2u);
  EXPECT_THROW(values_of([](program::ValueArray& array) { array.group = 0; }), InternalError);
}

}  // namespace
}  // namespace strait
