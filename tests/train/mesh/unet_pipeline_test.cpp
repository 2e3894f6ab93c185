// A U-Net through pipelines: its chain can be cut behind any block, in every order that leaves the
// backward pass whole, and messages carry the skips that pass a cut.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/shape/unet.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/unet_runs.h"

namespace strait {
namespace {

using test::Trained;

class UnetPipeline : public test::UnetRuns {
 protected:
  static Sets with(Sets sets, const Sets& more) {
    sets.insert(sets.end(), more.begin(), more.end());
    return sets;
  }
  /// Eight blocks between the first and the last one.
  static constexpr int64_t kMiddle = 8;
};

TEST_F(UnetPipeline, EveryCutEqualsOneRank) {
  for (int64_t cut = 1; cut < kMiddle; ++cut) {
    SCOPED_TRACE(cut);
    expect_equal(train(2, {"mesh.axes.stage=2", fmt::format("pipeline.cuts={}", cut)}), serial());
  }
}

TEST_F(UnetPipeline, EveryOrderOfManyStagesEqualsOneRank) {
  for (const Sets& sets :
       std::vector<Sets>{{"mesh.axes.stage=8", "pipeline.order=gpipe", "train.micro_batch_size=1"},
                         {"mesh.axes.stage=8", "pipeline.order=1f1b", "train.micro_batch_size=1"},
                         {"mesh.axes.stage=4", "pipeline.order=gpipe", "pipeline.cuts=1,2,7"},
                         {"mesh.axes.stage=4", "pipeline.order=1f1b", "pipeline.cuts=4,5,6"},
                         {"mesh.axes.stage=2", "pipeline.order=interleaved",
                          "pipeline.chunks_per_stage=4", "train.micro_batch_size=2"}}) {
    SCOPED_TRACE(::testing::PrintToString(sets));
    expect_equal(train(sets[0].back() - '0', sets), serial());
  }
}

TEST_F(UnetPipeline, StagesThatShareBlocksEqualOneRank) {
  for (const auto& [ranks, sets] : std::vector<std::pair<int64_t, Sets>>{
           {4, {"mesh.axes.y=2", "mesh.axes.stage=2", "pipeline.order=gpipe"}},
           {8, {"mesh.axes.x=2", "mesh.axes.y=2", "mesh.axes.stage=2", "pipeline.cuts=3"}},
           {4,
            {"mesh.axes.y=2", "mesh.axes.stage=2", "pipeline.order=interleaved",
             "pipeline.chunks_per_stage=2"}}}) {
    SCOPED_TRACE(::testing::PrintToString(sets));
    expect_equal(train(ranks, sets), serial());
  }
}

TEST_F(UnetPipeline, EvaluationsEqualOneRanks) {
  const Sets evaluates = {"evaluation.every_steps=10", "evaluation.batches=2",
                          "data.validation_share=0.2"};
  const Trained want = train(1, evaluates);
  EXPECT_FALSE(std::isnan(want.validation));
  for (const int64_t stages : {2, 4}) {
    const Trained got = train(stages, with({fmt::format("mesh.axes.stage={}", stages)}, evaluates));
    EXPECT_NEAR(got.validation, want.validation, 1e-9 * want.validation);
  }
}

/// Over the cut go, forth and back, the maps that later blocks want and the embedding of the step;
/// of ranks that share channels, a part each.
TEST_F(UnetPipeline, MessagesCarryWhatPassesTheCut) {
  for (const bool shares : {false, true})
    for (const int64_t cut : {1, 2, 4, 7}) {
      SCOPED_TRACE(cut);
      Sets sets = {"mesh.axes.stage=2", fmt::format("pipeline.cuts={}", cut), "train.steps=3",
                   test::kPairs};
      if (shares) sets.push_back("mesh.axes.y=2");
      const strait::Run run = run_of(sets);
      const Job job = make_job(run, shares ? 4 : 2);
      // In pixels of 8 x 8 of channels: 4 enter, each level of two leaves its features and, behind
      // the first, half of them in each dim.
      const int64_t whole = 4 * 64, half = 4 * 16, deep = 8 * 16, time = 16;
      const std::map<int64_t, int64_t> passes = {
          {1, whole + whole + half + time},                // enter, down.0, halved
          {2, whole + whole + half + deep + time},         // and down.1
          {4, whole + whole + half + deep + deep + time},  // what is made in the middle
          {7, whole + whole + time}};
      const train::Outcome outcome = test::train_small(run, shares ? 4 : 2, next_folder());
      const int64_t want = 2 * passes.at(cut) * run.train.global_batch_size * 8;
      const auto sent = [](const test::Bytes& bytes) {
        int64_t sum = 0;
        for (const auto& [row, count] : bytes) sum += row.first == "send" ? count : 0;
        return sum;
      };
      EXPECT_EQ(sent(test::bytes_of(outcome.traffic, 3)), want);
      EXPECT_EQ(sent(test::bytes_of(job.simulated.traffic, 1)), want);
      EXPECT_EQ(sent(test::bytes_of(job.cost.traffic, 1)), want);
    }
}

/// A piece of each value that passes a border, of its own size.
TEST_F(UnetPipeline, CodedMessagesHaveTheBytesOfTheCodec) {
  for (const Sets& order : std::vector<Sets>{
           {"pipeline.cuts=2,4,7", "mesh.axes.stage=4"},
           {"mesh.axes.stage=2", "pipeline.order=interleaved", "pipeline.chunks_per_stage=2"}}) {
    SCOPED_TRACE(::testing::PrintToString(order));
    const Sets sets = with(order, {"train.steps=3", "train.micro_batch_size=2"});
    const int64_t ranks = order[0].starts_with("pipeline") ? 4 : 2;
    const Sets coded = with(sets, {"pipeline.activation_codec=int8/64"});
    const Job plain = make_job(run_of(sets), ranks), job = make_job(run_of(coded), ranks);
    std::pair<int64_t, int64_t> want{0, 0};
    for (const program::Program& program : plain.design.steady())
      program::for_each_instance(program, [&](const program::Op& op, const program::Loops&) {
        if (op.kind != program::OpKind::kSend) return;
        const auto& array = program.arrays[static_cast<size_t>(op.reads.front().array)];
        want.first += array.partition.elements;
        want.second += (array.partition.elements + 63) / 64 * 4;
      });
    const auto sent = [](const Ledger& ledger, int64_t steps) {
      return test::coded_messages(ledger, steps, "int8/64");
    };
    EXPECT_EQ(sent(job.simulated.traffic, 1), want);
    EXPECT_EQ(sent(job.cost.traffic, 1), want);
    const train::Outcome outcome = test::train_small(run_of(coded), ranks, next_folder());
    EXPECT_EQ(sent(outcome.traffic, 3), want);
    test::expect_predicted_memory(outcome);
  }
}

TEST_F(UnetPipeline, CodedMessagesLearnWhatOneRankLearns) {
  for (const Sets& order : std::vector<Sets>{
           {"mesh.axes.stage=4", "pipeline.cuts=2,4,7"},
           {"mesh.axes.stage=2", "pipeline.order=interleaved", "pipeline.chunks_per_stage=4"}}) {
    SCOPED_TRACE(::testing::PrintToString(order));
    const Trained got =
        train(order[0].back() - '0',
              with(order, {"pipeline.activation_codec=int8/64", "train.micro_batch_size=2"}));
    EXPECT_NE(got.losses.back(), serial().losses.back());
    for (size_t step = 0; step < got.losses.size(); ++step)
      EXPECT_NEAR(got.losses[step], serial().losses[step], 0.02 * serial().losses[step]) << step;
  }
}

TEST_F(UnetPipeline, MemoryIsWhatTheAllocatorSaw) {
  for (const Sets& sets : std::vector<Sets>{
           {"mesh.axes.stage=2", "pipeline.order=gpipe", "train.micro_batch_size=1"},
           {"mesh.axes.stage=4", "pipeline.order=1f1b", "train.micro_batch_size=1"},
           {"mesh.axes.stage=2", "pipeline.order=interleaved", "pipeline.chunks_per_stage=2"}}) {
    SCOPED_TRACE(::testing::PrintToString(sets));
    test::expect_predicted_memory(test::train_small(run_of(with(sets, {"train.steps=2"})),
                                                    sets[0].back() - '0', next_folder()));
  }
}

TEST_F(UnetPipeline, OrdersThatSplitTheBackwardPassAreRefused) {
  for (const char* order : {"zero-bubble-h1", "zero-bubble-h2"}) try {
      make_job(run_of({"mesh.axes.stage=2", std::string("pipeline.order=") + order}), 2);
      FAIL() << "accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().key.value_or(""), "pipeline.order");
      EXPECT_NE(std::string(error.what()).find("\"1f1b\""), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace strait
