// strait evaluate gives the loss that training measured, on the same data or on other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/program.h"

namespace strait {
namespace {

namespace fs = std::filesystem;
using test::run;
using ::testing::HasSubstr;

class Evaluate : public ::testing::Test {
 protected:
  Evaluate() : file_(test::small_run_file(folder_.path())), run_dir_(folder_.path() + "/run") {}

  /// Trains two ranks; the report of train.
  Json train(const std::vector<std::string>& sets = {}) const {
    std::vector<std::string> all = {"train", file_,   "--ranks",
                                    "2",     "--set", "output.run_dir=" + run_dir_};
    for (const std::string& set : sets) all.insert(all.end(), {"--set", set});
    const auto ran = run(all, folder_.path() + "/train.json");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return ran.report;
  }
  test::Ran evaluate(const std::string& path, const std::vector<std::string>& sets = {}) const {
    std::vector<std::string> all = {"evaluate", path};
    for (const std::string& set : sets) all.insert(all.end(), {"--set", set});
    return run(all, folder_.path() + "/evaluate.json");
  }

  test::TemporaryFolder folder_;
  std::string file_, run_dir_;
};

TEST_F(Evaluate, GivesTheLossThatTrainingMeasured) {
  const Json trained = train({"train.precision=fp64", "train.steps=6", "evaluation.every_steps=2",
                              "checkpoint.keep_best=true"});
  const auto last = evaluate(run_dir_);
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_NEAR(last.report.at("validation_loss").as_number(),
              trained.at("validation_loss").as_number(), 1e-12);
  EXPECT_EQ(last.report.at("step").as_integer(), 6);
  EXPECT_THAT(last.out, HasSubstr("bits per byte"));
  const auto best = evaluate(run_dir_ + "/best");
  EXPECT_NEAR(best.report.at("validation_loss").as_number(),
              trained.at("best_validation_loss").as_number(), 1e-12);
}

TEST_F(Evaluate, TakesOtherDataAndPartsOfIt) {
  train({"train.steps=2"});
  const double own = evaluate(run_dir_).report.at("validation_loss").as_number();
  const std::string other = folder_.path() + "/other.txt";
  std::ofstream(other) << "rank rank rank unit, unit, wide.\nwide.\n" << test::small_text(50);
  const auto ran = evaluate(run_dir_, {"data.path=" + other, "data.validation_share=0.9"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_NE(ran.report.at("validation_loss").as_number(), own);
  EXPECT_EQ(ran.report.at("data").as_string(), other);
  const auto part = evaluate(run_dir_, {"evaluation.batches=1"});
  EXPECT_EQ(part.report.at("windows").as_integer(), 8);
  // What it takes at a time changes the loss by rounding alone.
  const auto one = evaluate(run_dir_, {"train.micro_batch_size=1"});
  EXPECT_NEAR(one.report.at("validation_loss").as_number(), own, 1e-6);
}

TEST_F(Evaluate, RefusesWhatCannotTakeEffectOrIsNotThere) {
  train({"train.steps=2"});
  const auto refused = [&](const std::vector<std::string>& sets) {
    const auto ran = evaluate(run_dir_, sets);
    EXPECT_EQ(ran.exit_code, 2);
    return ran.err;
  };
  EXPECT_THAT(refused({"train.steps=9"}), HasSubstr("no effect on an evaluation"));
  EXPECT_THAT(refused({"data.tokenizer=byte"}), HasSubstr("no effect on an evaluation"));
  EXPECT_THAT(refused({"data.path=" + folder_.path() + "/none.txt"}), HasSubstr("none.txt"));
  EXPECT_THAT(refused({"data.validation_share=0"}), HasSubstr("has no validation part"));
  EXPECT_EQ(evaluate(folder_.path()).exit_code, 2);
}

/// It draws its noise from the seed of the run.
TEST_F(Evaluate, OfAUnetGivesTheLossThatTrainingMeasured) {
  std::ofstream(file_) << "name = \"unet\"\nseed = 7\n[model]\nfamily = \"unet\"\n"
                          "unet = { channels = [4], image = 4, attention_from = 2, colors = 2 }\n"
                          "[data]\npath = \"synthetic:images/size=4/colors=2/count=100\"\n"
                          "[train]\nglobal_batch_size = 8\nprecision = \"fp64\"\n";
  const Json trained = train({"train.steps=2"});
  const auto ran = evaluate(run_dir_);
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_NEAR(ran.report.at("validation_loss").as_number(),
              trained.at("validation_loss").as_number(), 1e-12);
  for (const char* images : {"size=8/colors=2/count=100", "size=4/colors=1/count=100"}) {
    const auto other = evaluate(run_dir_, {std::string("data.path=synthetic:images/") + images});
    EXPECT_EQ(other.exit_code, 2);
    EXPECT_THAT(other.err, HasSubstr("synthetic:images/size=4/colors=2"));
  }
}

}  // namespace
}  // namespace strait
