// Rows of planned batches: each has a plan of its own, and its ranks share weights and gradients
// with those of the others.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <memory>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/checkpoint/reader.h"
#include "strait/verify/verify.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::outcome_of;
using test::small_run;
using Sets = std::vector<std::string>;
using Plans = std::vector<std::shared_ptr<const sequence::Plan>>;  // by row

class PlansOfRows : public test::MeshRuns {
 protected:
  strait::Run run_of(const Sets& more) {
    Sets sets = {"data.document_separator=wide.",
                 "train.global_batch_size=12",
                 "train.global_batch_tokens=800",
                 "train.steps=3",
                 "model.family=llama",
                 "model.shape.kv_heads=2",
                 "model.shape.tied_head=false",
                 "optimizer.decay_steps=20",
                 "runtime.threads_per_rank=1",
                 "runtime.deadline_seconds=30",
                 "model.shape.layers=2",
                 "model.shape.heads=4",
                 "model.shape.width=16",
                 "model.shape.ffn_width=24",
                 "model.shape.vocabulary=24",
                 "model.shape.context=240"};
    sets.insert(sets.end(), more.begin(), more.end());
    strait::Run run = small_run(folder_.path(), sets);
    run.output.run_dir = next_folder();
    return run;
  }
};

/// Links over which tokens of uneven rows are remapped, and others stay where they are.
const std::string kFastNodes =
    "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 1e2, latency_microseconds = 0.01 "
    "}, { name = \"across\", gb_per_second = 6.0, latency_microseconds = 0.01, links = 2 }]";

/// Documents of a row, of many lengths; now and then none.
std::vector<int64_t> random_row(const RandomStream& stream, uint64_t row) {
  const RandomStream of(stream.key(), "row", row);
  std::vector<int64_t> lengths;
  int64_t left = static_cast<int64_t>(of.below(0, 8) == 0 ? 0 : of.below(1, 400));
  for (uint64_t document = 2; left > 0; document += 2) {
    const uint64_t longest = of.below(document, 3) == 0 ? 240 : 40;
    lengths.push_back(
        std::min<int64_t>(left, 1 + static_cast<int64_t>(of.below(document + 1, longest))));
    left -= lengths.back();
  }
  return lengths;
}

/// The programs of all ranks, each a class of its own.
std::vector<program::Program> programs_of(const strategy::Design& design, const char* kind,
                                          const Plans& plans) {
  std::vector<program::Program> programs;
  for (int64_t rank = 0; rank < design.batch.ranks; ++rank)
    programs.push_back(strategy::compose_for_plan(
        design, kind, rank, plans[static_cast<size_t>(design.layout.batch_position(rank))]));
  return programs;
}

/// Whatever each row does with its documents, all ranks share weights on the same lanes.
TEST_F(PlansOfRows, TheProgramsOfAllRowsAreLegalTogether) {
  const RandomStream stream(21, "rows");
  std::set<std::string> kinds_of_plans;
  uint64_t row = 0;
  for (const Sets& mesh : {Sets{"mesh.axes.sequence=2", "placement.preset=zero3"},
                           Sets{"mesh.axes.sequence=4", "placement.preset=zero1"},
                           Sets{"mesh.axes.sequence=2", "mesh.axes.z=2", "placement.preset=hsdp"},
                           Sets{"mesh.axes.sequence=4", "placement.preset=ddp"}})
    for (const Sets& how :
         {Sets{"sequence.engine=packed"}, Sets{"sequence.engine=even", "sequence.routing=2"},
          Sets{"sequence.engine=hybrid"}, Sets{"sequence.engine=zeppelin"},
          Sets{"sequence.engine=zeppelin", "sequence.remap=qkv", "sequence.routing=rotate:2"}}) {
      Sets sets = {kFastNodes, "sequence.capacity_tokens=400"};
      sets.insert(sets.end(), mesh.begin(), mesh.end());
      sets.insert(sets.end(), how.begin(), how.end());
      if (mesh.front() == "mesh.axes.sequence=2")
        std::erase_if(sets,
                      [](const std::string& set) { return set.starts_with("sequence.routing"); });
      SCOPED_TRACE(fmt::format("{}", fmt::join(sets, ", ")));
      const strategy::Design design = strategy::make_design(run_of(sets), 8, 24, 0, nullptr);
      for (int trial = 0; trial < 6; ++trial) {
        Plans plans;
        for (int64_t at = 0; at < design.batch.data_ranks; ++at) {
          plans.push_back(design.planner->plan(random_row(stream, row++)));
          kinds_of_plans.insert(fmt::format("{} {}",
                                            sequence::remapping_name(plans.back()->remapping),
                                            plans.back()->proxies * plans.back()->rotations));
        }
        for (const char* kind : {strategy::kSteady, strategy::kEvaluation})
          for (const program::Problem& problem : program::verify(programs_of(design, kind, plans)))
            ADD_FAILURE() << kind << ", batch " << trial << ": " << problem.message;
      }
    }
  EXPECT_GE(kinds_of_plans.size(), 4U);
}

/// Of rows that share weights one remaps its tokens where another does not, in evaluations too.
TEST_F(PlansOfRows, RowsWithPlansOfTheirOwnTrainAsOneRankDoes) {
  const Sets steps = {"train.steps=8", "evaluation.every_steps=4"};
  const test::Trained one = test::trained(run_of(steps), 1, next_folder());
  for (const char* engine : {"packed", "zeppelin"})
    for (const Sets& mesh :
         {Sets{"mesh.axes.sequence=2", "placement.preset=zero3"},
          Sets{"mesh.axes.sequence=2", "mesh.axes.z=2", "placement.preset=hsdp"}}) {
      Sets sets = {kFastNodes, fmt::format("sequence.engine={}", engine)};
      for (const Sets* more : {&steps, &mesh}) sets.insert(sets.end(), more->begin(), more->end());
      SCOPED_TRACE(fmt::format("{}", fmt::join(sets, ", ")));
      expect_equal(test::trained(run_of(sets), 4, next_folder()), one);
    }
}

/// Of the run's last evaluation, whose batch has other rows than one of training, nothing is left.
TEST_F(PlansOfRows, OverlapIsMeasuredOfABatchOfTraining) {
  const train::Outcome outcome =
      outcome_of(make_job(run_of({"sequence.engine=zeppelin", "mesh.axes.sequence=2",
                                  "output.overlap_steps=2", "train.global_batch_tokens=500"}),
                          4));
  ASSERT_TRUE(outcome.overlap.has_value());
  EXPECT_GT(outcome.overlap->seconds, 0);
}

/// Of one batch, which then stands for all: what each row's plan moves and holds.
TEST_F(PlansOfRows, PredictionsHaveThePlanOfEveryRow) {
  for (const char* engine : {"packed", "even", "zeppelin"})
    for (const char* preset : {"ddp", "zero3"}) {
      SCOPED_TRACE(fmt::format("{}, {}", engine, preset));
      const Job job = make_job(
          run_of({kFastNodes, fmt::format("sequence.engine={}", engine), "mesh.axes.sequence=2",
                  fmt::format("placement.preset={}", preset), "train.steps=1"}),
          8);
      const train::Outcome outcome = outcome_of(job);
      EXPECT_EQ(job.design.steady().size(), 8U);
      EXPECT_EQ(test::bytes_of(job.simulated.traffic, 1), test::bytes_of(outcome.traffic, 1));
      EXPECT_EQ(test::bytes_of(job.cost.traffic, 1), test::bytes_of(outcome.traffic, 1));
      test::expect_predicted_memory(outcome);
    }
}

/// Of 16 rows 4 stand for all, so that programs of large clusters are few.
TEST_F(PlansOfRows, ManyRowsAreToldByFew) {
  const Job job = make_job(run_of({"sequence.engine=zeppelin", "mesh.axes.sequence=2",
                                   "train.global_batch_tokens=6400", "train.steps=1"}),
                           32);
  EXPECT_EQ(job.design.steady().size(), 8U);
}

/// The other row, too, and what was learned before it is saved.
TEST_F(PlansOfRows, ABatchThatNoRanksHoldEndsTheRunBehindACheckpoint) {
  const strait::Run run = run_of({"sequence.engine=zeppelin", "mesh.axes.sequence=2"});
  std::array<std::atomic<int>, 4> batches{};
  train::Hooks hooks;
  hooks.lengths_read = [&](int64_t rank, std::vector<int64_t>& lengths) {
    if (++batches[static_cast<size_t>(rank)] == 3 && rank >= 2) lengths = {5000, 1};
  };
  try {
    outcome_of(make_job(run, 4), hooks);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "sequence.capacity_tokens");
    EXPECT_EQ(error.place().step, 3);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the nearest valid value is 2501"));
  }
  EXPECT_EQ(checkpoint::CheckpointReader(run.output.run_dir).manifest().step, 2);
}

/// Spread over all ranks they would give one of them nearly all their tokens.
TEST_F(PlansOfRows, EvaluationsOfVeryShortDocumentsFit) {
  std::string text = test::small_text(2000);
  for (int i = 0; i < 1500; ++i) text += "rwide.";
  for (const char* engine : {"even", "packed"}) {
    strait::Run run = run_of({fmt::format("sequence.engine={}", engine), "mesh.axes.sequence=4",
                              "data.validation_share=0.2"});
    run.data.path = next_folder() + ".txt";
    std::ofstream(run.data.path) << text;
    EXPECT_EQ(outcome_of(make_job(run, 4)).validation.size(), 1U) << engine;
  }
}

}  // namespace
}  // namespace strait
