// What stays of a run's checkpoints when the best one is kept beside the newest.
#include "strait/checkpoint/retention.h"

#include <gmock/gmock.h>

#include "strait/base/errors.h"
#include "tests/checkpoint/example_run.h"

namespace strait::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// One step of a run: its validation loss, and whether it was due whatever the loss.
struct Step {
  int64_t step;
  std::optional<double> loss;
  bool due;
};

void save_step(SaveSession& session, const Step& step) {
  const ExampleShards shards(step.step, 0, 1);
  SaveDescription description = example_description(step.step, 1, step.step);
  if (step.loss) record_validation(description.manifest, *step.loss, !step.due);
  session.save(step.step, shards.views, std::move(description));
}

/// What is left of `steps` in the end, as numbers.
std::vector<int64_t> kept(const Retention& retention, const std::vector<Step>& steps,
                          const std::string& run_dir) {
  SessionOptions options = example_session(run_dir, 0, 1);
  options.retention = retention;
  SaveSession session(options);
  for (const Step& step : steps) save_step(session, step);
  std::vector<int64_t> left;
  for (const std::string& path : complete_checkpoints(run_dir))
    left.push_back(read_manifest(path).step);
  return left;
}

const std::vector<Step> kRun = {{10, 3.0, false}, {20, 2.0, true},          {30, 1.0, false},
                                {40, 1.5, true},  {50, std::nullopt, true}, {60, 1.0, true}};

TEST(KeepBest, TheBestStaysBesideThoseThatWereDue) {
  const TemporaryFolder all, one, two, off;
  EXPECT_THAT(kept({0, true}, kRun, all.path()), ElementsAre(20, 30, 40, 50, 60));
  EXPECT_THAT(kept({1, true}, kRun, one.path()), ElementsAre(30, 60));
  EXPECT_THAT(kept({2, true}, kRun, two.path()), ElementsAre(30, 50, 60));
  EXPECT_THAT(kept({2, false}, kRun, off.path()), ElementsAre(50, 60));
}

TEST(KeepBest, ABetterOneTakesThePlaceOfTheLast) {
  const TemporaryFolder run;
  EXPECT_THAT(kept({1, true}, {{1, 5.0, true}, {2, 4.0, false}, {3, 3.0, false}}, run.path()),
              ElementsAre(1, 3));
  expect_content(run.path() + "/checkpoints/step-00000003", 3);
}

TEST(KeepBest, IsFoundByItsName) {
  const TemporaryFolder run;
  kept({2, true}, kRun, run.path());
  EXPECT_EQ(best_checkpoint(run.path())->validation_loss, 1.0);
  EXPECT_EQ(resolve_checkpoint(run.path() + "/best"), run.path() + "/checkpoints/step-00000030");
  EXPECT_EQ(CheckpointReader(run.path() + "/best/").manifest().step, 30);
  EXPECT_EQ(resolve_checkpoint(run.path()), run.path() + "/checkpoints/step-00000060");
}

TEST(KeepBest, NoneIsTheBestWithoutEvaluations) {
  const TemporaryFolder run;
  save_example(run.path(), 1, 1);
  EXPECT_FALSE(best_checkpoint(run.path()));
  EXPECT_THAT(message_of<UserError>([&] { resolve_checkpoint(run.path() + "/best"); }),
              HasSubstr("no checkpoint of " + run.path() + " was evaluated"));
}

TEST(KeepBest, ADamagedOneIsNotTheBest) {
  const TemporaryFolder run;
  kept({0, true}, kRun, run.path());
  fs::remove(run.path() + "/checkpoints/step-00000030/rank-00000.safetensors");
  EXPECT_THAT(best_checkpoint(run.path())->path, HasSubstr("step-00000060"));
}

}  // namespace
}  // namespace strait::checkpoint
