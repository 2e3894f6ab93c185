// Pipelines train as one rank does: every placement along data, tied and untied heads, dropout and
// clipping; their bytes, their checkpoints and their bad input.
#include <gtest/gtest.h>

#include <map>

#include "strait/base/errors.h"
#include "strait/cost/cost.h"
#include "strait/sim/simulate.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::small_run;
using test::TemporaryFolder;
using test::Trained;

struct Case {
  int64_t stages, data, micro_batches;
  std::string placement;
  bool tied = true;
  std::string family = "gpt2";
  int64_t ranks() const { return stages * data; }
  std::string text() const {
    return std::to_string(stages) + " stages x " + std::to_string(data) + " " + placement + ", " +
           std::to_string(micro_batches) + " micro-batches, " + family +
           (tied ? " tied" : " untied");
  }
};

class Pipelines : public ::testing::Test {
 protected:
  static constexpr int64_t kGlobalBatch = 8;

  strait::Run run_of(const Case& c, std::vector<std::string> more = {}) {
    const std::vector<std::string> first = {
        "mesh.axes.stage=" + std::to_string(c.stages),
        "placement.preset=" + c.placement,
        "train.global_batch_size=" + std::to_string(kGlobalBatch),
        "train.micro_batch_size=" + std::to_string(kGlobalBatch / c.data / c.micro_batches),
        "train.clip_norm=0.3",
        "model.shape.layers=4",
        "model.shape.dropout=0.1",
        std::string("model.shape.tied_head=") + (c.tied ? "true" : "false"),
        "model.family=" + c.family,
        c.family == "gpt2" ? "model.shape.kv_heads=2" : "model.shape.kv_heads=1"};
    more.insert(more.begin(), first.begin(), first.end());
    return small_run(folder_.path(), more);
  }
  Trained train(const Case& c, const std::vector<std::string>& more = {}) {
    return test::trained(run_of(c, more), c.ranks(), next_folder());
  }
  /// The same on one rank.
  const Trained& serial(const Case& c) {
    const std::string key = c.family + (c.tied ? " tied" : " untied");
    const auto [found, fresh] = serial_.try_emplace(key);
    if (fresh) found->second = train({1, 1, 1, "ddp", c.tied, c.family});
    return found->second;
  }
  std::string next_folder() { return folder_.path() + "/" + std::to_string(number_++); }
  static void expect_equal(const Trained& got, const Trained& want) {
    ASSERT_EQ(got.losses.size(), want.losses.size());
    for (size_t step = 0; step < want.losses.size(); ++step)
      ASSERT_NEAR(got.losses[step], want.losses[step], 1e-9 * want.losses[step]) << step;
    EXPECT_NEAR(got.validation, want.validation, 1e-9 * want.validation);
    EXPECT_LT(test::distance(got, want), 1e-9);
  }

  TemporaryFolder folder_;
  std::map<std::string, Trained> serial_;
  int number_ = 0;
};

TEST_F(Pipelines, EqualOneRank) {
  std::vector<Case> cases;
  for (const char* placement : {"ddp", "zero1", "zero3"})
    for (const int64_t data : {1, 2, 4})
      for (const bool tied : {true, false}) cases.push_back({2, data, 2, placement, tied});
  cases.push_back({2, 2, 1, "zero2"});
  cases.push_back({2, 2, 4, "zero2"});
  cases.push_back({3, 2, 4, "zero1"});
  cases.push_back({4, 2, 2, "zero3"});
  cases.push_back({4, 1, 8, "ddp"});
  for (const char* placement : {"zero1", "zero3"})
    cases.push_back({2, 2, 4, placement, false, "llama"});
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text());
    expect_equal(train(c), serial(c));
  }
}

TEST_F(Pipelines, EqualOneRankWithRecomputation) {
  const Case c{2, 2, 2, "zero3"};
  expect_equal(train(c, {"train.recompute=block"}), serial(c));
}

}  // namespace
}  // namespace strait
