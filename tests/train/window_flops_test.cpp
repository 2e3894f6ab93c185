// What utilisation counts of windows that hold several documents.
#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "strait/train/outcome.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

TEST(WindowFlops, ReportsCountPairsInsideOfDocuments) {
  const test::TemporaryFolder folder;
  std::string text;
  for (int at = 0; at < 400; ++at) text += {static_cast<char>('a' + at * at % 7), '|'};
  test::write_text(folder.path(), text);
  const Job job = make_job(
      test::small_run(folder.path(), {"data.tokenizer=char", "data.document_separator=|",
                                      "train.steps=9", "output.run_dir=" + folder.path() + "/run"}),
      1);
  // Documents of two tokens, of which a border of windows stands inside every seventh.
  const double flops = model_flops_per_token(job.design.shape, 2);
  EXPECT_EQ(job.model_flops_per_token, flops);
  EXPECT_EQ(job.design.model_flops_per_token, flops);
  const train::Outcome outcome = test::outcome_of(job);
  const double seconds =
      std::accumulate(outcome.step_seconds.begin(), outcome.step_seconds.end(), 0.0);
  ASSERT_GT(seconds, 0);
  const double tokens = 24.0 * 13 * static_cast<double>(outcome.step_seconds.size());
  EXPECT_NEAR(train::model_flops_utilization(job, outcome),
              tokens * flops / seconds / job.peak_flops_per_second, 1e-12);
}

/// Plans and simulations are made without a job.
TEST(WindowFlops, DesignsCountPairsInsideOfDocuments) {
  const test::TemporaryFolder folder;
  std::string text;
  for (int at = 0; at < 400; ++at) text += {static_cast<char>('a' + at * at % 7), '|'};
  test::write_text(folder.path(), text);
  const strait::Run run = test::small_run(
      folder.path(), {"data.tokenizer=char", "data.document_separator=|", "train.steps=9"});
  const std::optional<Corpus> corpus = strategy::design_corpus(run);
  ASSERT_TRUE(corpus);
  const strategy::Design design = strategy::make_design(run, 1, 8, 0, &*corpus);
  EXPECT_EQ(design.model_flops_per_token, model_flops_per_token(design.shape, 2));
  EXPECT_EQ(design.shape.document_tokens, 2);
  // One stream need not be read.
  EXPECT_FALSE(strategy::design_corpus(test::small_run(folder.path())));
}

TEST(WindowFlops, OneStreamCountsTheContext) {
  const test::TemporaryFolder folder;
  const Job job =
      make_job(test::small_run(folder.path(), {"output.run_dir=" + folder.path() + "/run"}), 1);
  EXPECT_EQ(job.model_flops_per_token, model_flops_per_token(job.design.shape, 13));
}

}  // namespace
}  // namespace strait
