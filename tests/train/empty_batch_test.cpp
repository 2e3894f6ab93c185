// Batches in which no token's loss counts: they change nothing and are left out of means.
#include <gtest/gtest.h>

#include <cmath>

#include "strait/report/metrics.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::TemporaryFolder;
using test::Trained;

using Sets = std::vector<std::string>;

/// Documents of one letter and a mark; a window of one token that begins at a mark counts nothing.
Run letters(const TemporaryFolder& folder, const Sets& sets) {
  std::string text;
  for (int at = 0; at < 400; ++at) text += {static_cast<char>('a' + at * at % 7), '|'};
  test::write_text(folder.path(), text);
  Sets all = {"data.tokenizer=char",      "data.document_separator=|",
              "model.shape.context=1",    "train.global_batch_size=2",
              "train.micro_batch_size=1", "optimizer.schedule=constant",
              "optimizer.warmup_steps=0"};
  all.insert(all.end(), sets.begin(), sets.end());
  return test::small_run(folder.path(), all);
}

/// The first empty step that has others before and behind it, counted from 0; -1 without any.
int64_t empty_step(const std::vector<double>& losses) {
  bool counted = false;
  for (size_t at = 0; at < losses.size(); ++at) {
    if (counted && std::isnan(losses[at])) return static_cast<int64_t>(at);
    counted = counted || !std::isnan(losses[at]);
  }
  return -1;
}

TEST(EmptyBatches, ChangeNothing) {
  const Sets kForms[] = {
      {},
      {"placement.preset=zero3"},
      {"mesh.axes.stage=2", "pipeline.order=zero-bubble-h2", "pipeline.post_validation=true"}};
  for (const Sets& form : kForms) {
    const int64_t ranks = form.empty() ? 1 : 2;
    const TemporaryFolder folder;
    const auto after = [&](int64_t steps) {
      Sets sets = form;
      sets.push_back("train.steps=" + std::to_string(steps));
      return test::trained(letters(folder, sets), ranks,
                           folder.path() + "/run" + std::to_string(steps));
    };
    const Trained whole = after(30);
    const int64_t empty = empty_step(whole.losses);
    ASSERT_GT(empty, 0) << "no batch was empty";
    const Trained before = after(empty), behind = after(empty + 1), next = after(empty + 2);
    EXPECT_EQ(before.hash, behind.hash) << ranks;
    EXPECT_NE(behind.hash, next.hash) << ranks;
    EXPECT_TRUE(std::isnan(behind.losses.back()));
    for (size_t at = 0; at < before.losses.size(); ++at)
      if (!std::isnan(whole.losses[at])) {
        EXPECT_EQ(whole.losses[at], before.losses[at]);
      }
  }
}

/// What cannot know in time that a batch is empty is refused, where one may be.
TEST(EmptyBatches, AreRefusedWhereUpdatesComeBeforeTheCount) {
  const TemporaryFolder folder;
  const auto refusal = [&](const Sets& sets) -> std::string {
    strait::Run run = letters(folder, sets);
    run.output.run_dir = folder.path() + "/run";
    try {
      make_job(run, 1);
    } catch (const UserError& error) {
      return error.place().key.value_or("");
    }
    return "";
  };
  const std::string early = "optimizer.in_backward=true";
  EXPECT_EQ(refusal({early, "train.clip_norm=0"}), "optimizer.in_backward");
  EXPECT_EQ(refusal({early, "train.clip_norm=0", "model.shape.context=2"}), "");
}

/// The gradient is that of the mean over tokens that count, however many do: of two windows of
/// which one counts nothing it is the other's.
TEST(EmptyBatches, TokensThatDoNotCountTakeNoShareOfTheGradient) {
  const TemporaryFolder folder;
  const auto steps_of = [&](const std::string& sequences, const std::string& steps, int64_t ranks) {
    strait::Run run = letters(folder, {"train.global_batch_size=" + sequences,
                                       "train.steps=" + steps, "optimizer.learning_rate=0"});
    const std::string run_dir = folder.path() + "/of-" + sequences + "-" + std::to_string(ranks);
    test::train_small(run, ranks, run_dir);
    return report::read_metrics(run_dir + "/metrics.jsonl");
  };
  const auto alone = steps_of("1", "60", 1);
  for (const int64_t ranks : {1, 2}) {
    const auto pairs = steps_of("2", "30", ranks);
    int64_t compared = 0;
    for (size_t at = 0; at < pairs.size(); ++at) {
      const report::StepMetrics &a = alone[2 * at], &b = alone[2 * at + 1];
      if (std::isnan(a.loss) == std::isnan(b.loss)) continue;
      const report::StepMetrics& counts = std::isnan(a.loss) ? b : a;
      EXPECT_NEAR(pairs[at].loss, counts.loss, 1e-12);
      EXPECT_NEAR(pairs[at].gradient_norm, counts.gradient_norm, 1e-9 * counts.gradient_norm);
      ++compared;
    }
    EXPECT_GT(compared, 5);
  }
}

TEST(EmptyBatches, AreLeftOutOfMeans) {
  const TemporaryFolder folder;
  strait::Run run = letters(folder, {"train.steps=30"});
  run.output.run_dir = folder.path() + "/run";
  const Job job = make_job(run, 1);
  const train::Outcome outcome = test::outcome_of(job);
  double sum = 0, count = 0;
  for (const double loss : outcome.losses)
    if (!std::isnan(loss)) sum += loss, ++count;
  ASSERT_LT(count, 30);
  EXPECT_DOUBLE_EQ(train::outcome_json(job, outcome).at("train_loss").as_number(), sum / count);
}

}  // namespace
}  // namespace strait
