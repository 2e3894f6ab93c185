// Ranks of x that split rows (tensor.sequence_parallel) beside planned batches of whole documents,
// whose ranks of sequence have uneven and odd numbers of tokens (specs: sequences 9c, 9d).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <tuple>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/sequence/remap.h"
#include "strait/sequence/report.h"
#include "strait/strategy/compose/expected_batch.h"
#include "strait/verify/verify.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::Bytes;
using test::outcome_of;
using test::small_run;
using test::Trained;
using Sets = std::vector<std::string>;

const Sets kLlama = {"model.family=llama", "model.shape.kv_heads=2", "model.shape.tied_head=false"};
const Sets kNormed = {"model.family=qwen3", "model.shape.kv_heads=2", "model.shape.bias=false"};

// Links so fast that ranks of both nodes share long documents.
const std::string kFastNodes =
    "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 1e5, latency_microseconds = 0.0 "
    "}, { name = \"across\", gb_per_second = 6e3, latency_microseconds = 0.0 }]";

Sets joined(Sets sets, const Sets& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

class PlannedRows : public test::MeshRuns {
 protected:
  strait::Run run_of(const Sets& more) {
    return small_run(
        folder_.path(),
        joined({"data.document_separator=.\n", "train.global_batch_size=12",
                "train.global_batch_tokens=400", "train.steps=20", "train.clip_norm=0.3",
                "optimizer.decay_steps=20", "runtime.threads_per_rank=1", "model.shape.layers=2",
                "model.shape.heads=4", "model.shape.kv_heads=4", "model.shape.width=16",
                "model.shape.ffn_width=24", "model.shape.vocabulary=24", "model.shape.context=40"},
               more));
  }
  /// In fp64; by the serial run's keys.
  Trained train(const Sets& sets, int64_t ranks) {
    return test::trained(run_of(sets), ranks, next_folder());
  }
  /// `sets` of two ranks of x that split rows.
  static Sets split(const Sets& sets) {
    return joined({"mesh.axes.x=2", "tensor.sequence_parallel=true"}, sets);
  }
  /// Of four ranks of the axis, each two ranks of x on a node, in batches with long documents.
  strait::Run shared_run(const std::string& engine, const Sets& more) {
    strait::Run run = run_of(split(joined(
        {"sequence.engine=" + engine, "mesh.axes.sequence=4", "data.document_separator=wide.",
         "train.global_batch_tokens=800", "model.shape.context=240", "train.steps=3",
         "placement.preset=ddp", "sequence.capacity_tokens=400", kFastNodes},
        joined(kLlama, more))));
    run.output.run_dir = next_folder();
    return run;
  }
};

struct Case {
  Sets sets;
  int64_t ranks;
};

TEST_F(PlannedRows, PlansOfBatchesTrainAsOneRankDoes) {
  const Sets evaluates = {"evaluation.every_steps=10"};
  for (const auto& [family, engines] : {std::pair(Sets{}, std::pair("even", "zeppelin")),
                                        std::pair(kLlama, std::pair("packed", "hybrid"))}) {
    const Trained one = train(joined(family, evaluates), 1);
    for (const char* engine : {engines.first, engines.second})
      for (const Case& c :
           std::vector<Case>{{{"mesh.axes.sequence=2"}, 4},
                             {{"mesh.axes.sequence=3", "train.recompute=block"}, 6},
                             {{"mesh.axes.sequence=2", "placement.preset=zero3"}, 8}}) {
        const Sets sets =
            split(joined(joined(family, evaluates),
                         joined(c.sets, {fmt::format("sequence.engine={}", engine)})));
        SCOPED_TRACE(fmt::format("{} ranks, {}", c.ranks, fmt::join(sets, ", ")));
        expect_equal(train(sets, c.ranks), one);
      }
  }
}

/// Beside other axes and switches, and more ranks of x than most ranks' tokens divide by.
TEST_F(PlannedRows, OtherAxesAndSwitchesTrainAsOneRankDoes) {
  for (const auto& [family, cases] :
       {std::pair(kLlama,
                  std::vector<Case>{
                      {{"mesh.axes.sequence=2", "sequence.engine=packed", "mesh.axes.y=2"}, 8},
                      {{"mesh.axes.sequence=2", "sequence.engine=hybrid", "tensor.tiles=on:3"}, 4},
                      {{"mesh.axes.sequence=2", "sequence.engine=zeppelin", "sequence.remap=qkv",
                        "train.recompute=every:2", "placement.preset=zero1"},
                       8}}),
        std::pair(kNormed, std::vector<Case>{{{"mesh.axes.sequence=2", "sequence.engine=zeppelin",
                                               "mesh.axes.z=2", "placement.preset=hsdp"},
                                              8},
                                             {{"mesh.axes.sequence=2", "sequence.engine=even",
                                               "tensor.overlap=[]", "tensor.tiles=off"},
                                              4},
                                             {{"mesh.axes.sequence=3", "sequence.engine=packed",
                                               "sequence.remap=qkv"},
                                              6}})}) {
    const Trained one = train(family, 1);
    for (const Case& c : cases) {
      const Sets sets = split(joined(family, c.sets));
      SCOPED_TRACE(fmt::format("{} ranks, {}", c.ranks, fmt::join(sets, ", ")));
      expect_equal(train(sets, c.ranks), one);
    }
  }
  const Sets four =
      joined(split({"mesh.axes.sequence=2", "sequence.engine=packed"}), {"mesh.axes.x=4"});
  expect_equal(train(four, 8), train({}, 1));
}

/// Two documents on four ranks: those without one have rows that pad alone.
TEST_F(PlannedRows, RanksWithoutDocumentsTrainAsOneRankDoes) {
  const Sets few = {"train.global_batch_tokens=80"};
  for (const char* remap : {"none", "qkv"})
    for (const Sets& family : {Sets{}, kLlama}) {
      SCOPED_TRACE(remap);
      const Sets sets =
          split(joined(joined(family, few), {"mesh.axes.sequence=4", "sequence.engine=packed",
                                             fmt::format("sequence.remap={}", remap)}));
      expect_equal(train(sets, 8), train(joined(family, few), 1));
    }
}

/// Keys that cross nodes over proxies, or in several orders.
TEST_F(PlannedRows, RoutedKeysTrainAsOneRankDoes) {
  const Sets batches = {"train.global_batch_tokens=800", "model.shape.context=240",
                        "data.document_separator=wide.", "train.steps=8"};
  const Trained one = train(joined(batches, {"model.shape.kv_heads=4"}), 1);
  for (const char* routing : {"2", "whole:2", "rotate:2"})
    for (const char* remap : {"none", "qkv"}) {
      const Sets sets =
          joined(batches,
                 split({"model.shape.kv_heads=4", "mesh.axes.sequence=4", "sequence.engine=even",
                        "sequence.capacity_tokens=300", fmt::format("sequence.routing={}", routing),
                        fmt::format("sequence.remap={}", remap),
                        "cluster.levels=[{ name = \"node\", size = 4, gb_per_second = 1e5, "
                        "latency_microseconds = 0.0 }, { name = \"across\", gb_per_second = 6e3, "
                        "latency_microseconds = 0.0 }]"}));
      SCOPED_TRACE(fmt::format("routing {}, remap {}", routing, remap));
      expect_equal(train(sets, 8), one);
    }
}

/// A batch's tokens of each rank of the axis beside attention, filled up to an even number.
std::vector<int64_t> padded_rows(const sequence::Plan& plan) {
  std::vector<int64_t> rows;
  for (const sequence::Load& load : sequence::loads(plan)) rows.push_back(load.tokens);
  if (plan.remapping != sequence::Remapping::kNone) {
    const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    const int64_t ranks = std::ssize(rows);
    for (int64_t rank = 0; rank < ranks; ++rank)
      rows[static_cast<size_t>(rank)] = all / ranks + (rank < all % ranks ? 1 : 0);
  }
  for (int64_t& count : rows) count = std::max<int64_t>(2, count + count % 2);
  return rows;
}

/// What a step on four ranks of the axis with two of x each moves, in fp64: per block four
/// reduce-scatters' and six all-gathers' worth of a rank's rows, as SplitRows has them.
void add_step(Bytes& bytes, const Job& job, const sequence::Plan& plan) {
  const ShapeOptions& options = job.design.shape.options;
  const sequence::Layer& layer = job.design.planner->layer();
  for (const sequence::LevelTraffic& traffic :
       {sequence::plan_traffic(plan, layer), sequence::remap_traffic(plan, layer)}) {
    EXPECT_EQ(traffic.inside.forward + traffic.inside.backward, 0);
    bytes[{"send", 1}] += 2 * options.layers * (traffic.between.forward + traffic.between.backward);
  }
  const std::vector<int64_t> rows = padded_rows(plan);
  const int64_t stream = 8 * options.width * std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const int64_t parts = 8 * 3 * 2 * std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const int64_t norms = 8 * (2 * options.layers + 1) * 2 * options.width;
  test::add_exchange(bytes, "reduce-scatter", stream * (4 * options.layers + 2), {2, 1});
  test::add_exchange(bytes, "all-gather", stream * (6 * options.layers + 2), {2, 1});
  test::add_exchange(bytes, "all-reduce", 2 * parts + 4 * 2 * norms, {2, 1});
  for (const UnitShape& unit : job.design.layout.local_shape().units)
    test::add_exchange(bytes, "all-reduce", 2 * 2 * unit.elements * 8, {4, 2});
  test::add_exchange(bytes, "all-reduce", 2 * test::kAgreedBytes, {8, 1});
}

TEST_F(PlannedRows, BytesAreClosedFormsInAllReaders) {
  for (const auto& [engine, remap] :
       {std::pair("even", "none"), std::pair("zeppelin", "none"), std::pair("zeppelin", "qkv"),
        std::pair("packed", "none"), std::pair("packed", "qkv")}) {
    SCOPED_TRACE(fmt::format("{}, remap {}", engine, remap));
    const Job job = make_job(shared_run(engine, {fmt::format("sequence.remap={}", remap)}), 8);
    std::mutex mutex;
    std::vector<std::vector<int64_t>> batches;
    train::Hooks hooks;
    hooks.lengths_read = [&](int64_t rank, std::vector<int64_t>& lengths) {
      const std::lock_guard lock(mutex);
      if (rank == 0) batches.push_back(lengths);
    };
    const train::Outcome outcome = outcome_of(job, hooks);
    const strategy::BatchPlanner& planner = *job.design.planner;
    Bytes want, of_expected;
    int64_t odd = 0;
    for (const std::vector<int64_t>& lengths : batches) {
      const auto plan = planner.plan(lengths);
      add_step(want, job, *plan);
      for (const sequence::Load& load : sequence::loads(*plan)) odd += load.tokens % 2;
    }
    std::erase_if(want, [](const auto& row) { return row.second == 0; });
    EXPECT_EQ(batches.size(), 3U);
    EXPECT_GT(odd, 0);
    EXPECT_EQ(test::bytes_of(outcome.traffic, 1), want);
    add_step(
        of_expected, job,
        *planner.plan(
            strategy::expected_lengths(job.design.run, 1, planner, *job.corpus).median.front()));
    std::erase_if(of_expected, [](const auto& row) { return row.second == 0; });
    EXPECT_EQ(test::bytes_of(job.simulated.traffic, 1), of_expected);
    EXPECT_EQ(test::bytes_of(job.cost.traffic, 1), of_expected);
  }
}

TEST_F(PlannedRows, MemoryIsWhatTheAllocatorSaw) {
  for (const auto& [engine, remap] :
       {std::pair("zeppelin", "none"), std::pair("zeppelin", "qkv"), std::pair("even", "none"),
        std::pair("packed", "none"), std::pair("packed", "qkv")})
    for (const Sets& more : {Sets{}, Sets{"train.recompute=block"},
                             Sets{"train.precision=bf16", "placement.preset=zero3"}}) {
      SCOPED_TRACE(
          fmt::format("{}, remap {}, {}", engine, remap, more.empty() ? "plain" : more.front()));
      const Sets sets = joined({"train.steps=1", fmt::format("sequence.remap={}", remap)}, more);
      test::expect_predicted_memory(outcome_of(make_job(shared_run(engine, sets), 8)));
    }
}

/// What blocks keep between products: their input and their middle, of a rank's rows.
TEST_F(PlannedRows, KeptActivationsFall) {
  const auto peak = [&](const char* splits) {
    const Sets sets = {"train.steps=1", "sequence.remap=none", "model.shape.layers=16",
                       fmt::format("tensor.sequence_parallel={}", splits)};
    const train::Outcome outcome = outcome_of(make_job(shared_run("even", sets), 8));
    return *std::ranges::max_element(outcome.pool_peak_bytes);
  };
  const int64_t rows = 800 / 4 - 10;  // of a rank of sequence, at least
  const int64_t kept = 16 * 2 * rows * 16 * 8;
  EXPECT_GT(peak("false") - peak("true"), kept / 2 * 8 / 10);
}

/// In bf16, norms of gradients are those without the split but for rounding (2^-9 each).
TEST_F(PlannedRows, Bfloat16HasTheGradientsOfWholeRows) {
  const auto losses = [&](const char* splits) {
    const Sets sets = {"train.precision=bf16", fmt::format("tensor.sequence_parallel={}", splits)};
    return outcome_of(make_job(shared_run("zeppelin", sets), 8)).losses;
  };
  const std::vector<double> got = losses("true"), want = losses("false");
  for (size_t step = 0; step < want.size(); ++step)
    EXPECT_NEAR(got[step], want[step], 0x1p-8 * want[step]) << step;
}

/// Batches of 1 to 40 documents.
TEST_F(PlannedRows, TheProgramsOfAnyPlanAreLegalTogether) {
  const RandomStream stream(12, "batches");
  for (const char* remap : {"none", "qkv", "auto"}) {
    const Job job = make_job(shared_run("zeppelin", {fmt::format("sequence.remap={}", remap)}), 8);
    for (uint64_t trial = 0; trial < 40; ++trial) {
      std::vector<int64_t> lengths;
      int64_t left = 1 + static_cast<int64_t>(stream.below(trial, 900));
      for (uint64_t document = 0; left > 0 && document < 40; ++document) {
        const RandomStream of(stream.key(), "length", trial, document);
        lengths.push_back(std::min<int64_t>(left, 1 + static_cast<int64_t>(of.below(0, 240))));
        left -= lengths.back();
      }
      const auto plan = job.design.planner->plan(lengths);
      EXPECT_NE(plan->remapping, sequence::Remapping::kResidual);
      program::ProgramSet set = job.design.programs;
      for (program::StepKind& kind : set.kinds) {
        if (kind.name != strategy::kSteady) continue;
        for (size_t member = 0; member < kind.classes.size(); ++member) {
          program::Program& one = kind.classes[member];
          const std::vector<int64_t> both = one.members;  // ranks of x
          one = strategy::compose_for_plan(job.design, kind.name, both.front(), plan);
          one.members = both;
        }
      }
      for (const program::Problem& problem : program::verify(set))
        ADD_FAILURE() << "batch " << trial << ": " << problem.message;
    }
  }
}

TEST_F(PlannedRows, WhatItCannotDoIsRefused) {
  const Sets planned = {"sequence.engine=zeppelin", "mesh.axes.sequence=2"};
  const auto refused = [&](const Sets& sets) {
    return refusal_of([&] { make_job(run_of(joined(planned, sets)), 4); });
  };
  EXPECT_THAT(refused(split({"sequence.remap=residual"})),
              ::testing::AllOf(::testing::HasSubstr("sequence.remap: "),
                               ::testing::HasSubstr("tensor.sequence_parallel = true"),
                               ::testing::HasSubstr("the nearest valid value is \"qkv\"")));
  EXPECT_THAT(refused({"tensor.sequence_parallel=true"}),
              ::testing::HasSubstr("cannot take effect with mesh.axes.x = 1"));
}

}  // namespace
}  // namespace strait
