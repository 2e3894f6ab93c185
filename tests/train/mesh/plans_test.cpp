// Programs that plans of batches are composed for: proved legal together, exact in bytes, as large
// as predicted (specs: sequences 9d, Z5, Z8, Z14, Z15).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/report/metrics.h"
#include "strait/sequence/remap.h"
#include "strait/sequence/report.h"
#include "strait/shape/segment.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/expected_batch.h"
#include "strait/verify/verify.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/mesh/plan_programs.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::Bytes;
using test::outcome_of;
using test::small_run;
using Sets = std::vector<std::string>;

// Links so fast that documents of these lengths are shared by ranks of both nodes.
const Sets kFastNodes = {
    "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 1e5, latency_microseconds = 0.0 "
    "}, { name = \"across\", gb_per_second = 6e3, latency_microseconds = 0.0 }]",
    "sequence.capacity_tokens=300"};

class PlannedPrograms : public test::MeshRuns {
 protected:
  strait::Run run_of(const std::string& engine, const Sets& more = {}) {
    Sets sets = {"sequence.engine=" + engine,
                 "mesh.axes.sequence=4",
                 "data.document_separator=wide.",
                 "train.global_batch_size=12",
                 "train.global_batch_tokens=800",
                 "train.steps=3",
                 "model.family=llama",
                 "model.shape.kv_heads=2",
                 "model.shape.tied_head=false",
                 "optimizer.decay_steps=20",
                 "runtime.threads_per_rank=1",
                 "model.shape.layers=2",
                 "model.shape.heads=4",
                 "model.shape.width=16",
                 "model.shape.ffn_width=24",
                 "model.shape.vocabulary=24",
                 "model.shape.context=240",
                 "placement.preset=ddp"};
    for (const Sets* other : {&kFastNodes, &more})
      sets.insert(sets.end(), other->begin(), other->end());
    strait::Run run = small_run(folder_.path(), sets);
    run.output.run_dir = next_folder();
    return run;
  }
};

void add_attention(Bytes& bytes, const sequence::LevelTraffic& traffic, int64_t layers) {
  bytes[{"send", 0}] += layers * (traffic.inside.forward + traffic.inside.backward);
  bytes[{"send", 1}] += layers * (traffic.between.forward + traffic.between.backward);
}

/// What a step moves beside attention.
void add_step(Bytes& bytes, const Job& job) {
  for (const UnitShape& unit : job.design.shape.units)
    test::add_exchange(bytes, "all-reduce", 2 * unit.elements * 8, {4, 1});
  test::add_exchange(bytes, "all-reduce", 2 * test::kAgreedBytes, {4, 1});
}

TEST_F(PlannedPrograms, BytesAreClosedFormsInAllReaders) {
  for (const auto& [engine, remap, routing] :
       {std::tuple("zeppelin", "none", "auto"), std::tuple("zeppelin", "qkv", "off"),
        std::tuple("zeppelin", "residual", "off"), std::tuple("zeppelin", "auto", "2"),
        std::tuple("even", "none", "2"), std::tuple("even", "none", "auto"),
        std::tuple("even", "none", "rotate"), std::tuple("zeppelin", "residual", "rotate:2")}) {
    SCOPED_TRACE(fmt::format("{}, remap {}, routing {}", engine, remap, routing));
    const Job job =
        make_job(run_of(engine, {"sequence.plan=true", fmt::format("sequence.remap={}", remap),
                                 fmt::format("sequence.routing={}", routing)}),
                 4);
    const train::Outcome outcome = outcome_of(job);
    Bytes want, of_expected;
    for (const report::StepMetrics& step :
         report::read_metrics(job.folder.path + "/metrics.jsonl")) {
      for (const auto& [member, level] :
           {std::pair("bytes_inside_nodes", 0), std::pair("bytes_between_nodes", 1)}) {
        for (const Json* part : {&step.sequence_plan, &step.sequence_plan.at("linear")}) {
          const Json& traffic = part->at(member);
          want[{"send", level}] +=
              traffic.at("forward").as_integer() + traffic.at("backward").as_integer();
        }
      }
      add_step(want, job);
    }
    for (const int64_t level : {0, 1}) EXPECT_GT((want[{"send", level}]), 0);
    EXPECT_EQ(test::bytes_of(outcome.traffic, 1), want);
    const strategy::BatchPlanner& planner = *job.design.planner;
    const auto plan = planner.plan(
        strategy::expected_lengths(job.design.run, 1, planner, *job.corpus).median.front());
    const sequence::Layer& layer = planner.layer();
    add_attention(of_expected, sequence::plan_traffic(*plan, layer), 2);
    add_attention(of_expected, sequence::remap_traffic(*plan, layer), 2);
    add_step(of_expected, job);
    std::erase_if(of_expected, [](const auto& row) { return row.second == 0; });
    EXPECT_EQ(test::bytes_of(job.simulated.traffic, 1), of_expected);
    EXPECT_EQ(test::bytes_of(job.cost.traffic, 1), of_expected);
  }
}

TEST_F(PlannedPrograms, PackedDocumentsMoveNoKeys) {
  const Job job =
      make_job(run_of("packed", {"sequence.capacity_tokens=400", "sequence.remap=none"}), 4);
  for (const auto& [row, bytes] : test::bytes_of(outcome_of(job).traffic, 1))
    EXPECT_EQ(row.first, "all-reduce");
}

TEST_F(PlannedPrograms, MemoryIsWhatTheAllocatorSaw) {
  for (const auto& [engine, remap] :
       {std::pair("zeppelin", "none"), std::pair("zeppelin", "qkv"),
        std::pair("zeppelin", "residual"), std::pair("even", "none"), std::pair("packed", "none"),
        std::pair("packed", "qkv"), std::pair("packed", "residual")})
    for (const Sets& more : {Sets{}, Sets{"train.recompute=block"},
                             Sets{"train.precision=bf16", "placement.preset=zero3"}}) {
      Sets sets = {"train.steps=1"};
      sets.insert(sets.end(), more.begin(), more.end());
      sets.insert(sets.end(),
                  {"sequence.capacity_tokens=400", fmt::format("sequence.remap={}", remap)});
      SCOPED_TRACE(
          fmt::format("{}, remap {}, {}", engine, remap, more.empty() ? "plain" : more.front()));
      test::expect_predicted_memory(outcome_of(make_job(run_of(engine, sets), 4)));
    }
}

/// Z14, of many batches: of the rank that holds most in any of them.
TEST_F(PlannedPrograms, MemoryOfARunIsThatOfTheWidestBatch) {
  for (const char* engine : {"zeppelin", "packed"})
    for (const char* remap : {"none", "qkv", "residual"}) {
      SCOPED_TRACE(fmt::format("{}, remap {}", engine, remap));
      const train::Outcome outcome =
          outcome_of(make_job(run_of(engine, {"train.steps=9", "sequence.capacity_tokens=400",
                                              fmt::format("sequence.remap={}", remap)}),
                              4));
      const auto most = static_cast<double>(*std::ranges::max_element(outcome.pool_peak_bytes));
      EXPECT_NEAR(static_cast<double>(*std::ranges::max_element(outcome.predicted_peak_bytes)),
                  most, 0.05 * most);
    }
}

/// Batches of 1 to 40 documents with rings of all sizes, on two nodes of two.
TEST_F(PlannedPrograms, TheProgramsOfAnyPlanAreLegalTogether) {
  const RandomStream stream(11, "batches");
  for (const auto& [fill, remap, routing] :
       {std::tuple("true", "none", "off"), std::tuple("false", "none", "2"),
        std::tuple("true", "qkv", "off"), std::tuple("true", "qkv", "2"),
        std::tuple("true", "residual", "2"), std::tuple("false", "none", "rotate:2"),
        std::tuple("true", "qkv", "rotate:2")}) {
    const Job job = make_job(
        run_of("zeppelin",
               {fmt::format("sequence.fill={}", fill), fmt::format("sequence.remap={}", remap),
                fmt::format("sequence.routing={}", routing), "placement.preset=zero3"}),
        4);
    int64_t shared = 0;
    for (uint64_t trial = 0; trial < 60; ++trial) {
      std::vector<int64_t> lengths;
      int64_t left = 200 + static_cast<int64_t>(stream.below(3 * trial, 900));
      for (uint64_t document = 0; left > 0 && document < 40; ++document) {
        const RandomStream of(stream.key(), "length", trial, document);
        lengths.push_back(std::min<int64_t>(
            left, 1 + static_cast<int64_t>(of.below(0, of.below(1, 3) == 0 ? 240 : 40))));
        left -= lengths.back();
      }
      const auto plan = job.design.planner->plan(lengths);
      for (const sequence::Group& group : plan->groups) shared += group.ranks.size() > 1;
      for (const program::Problem& problem : program::verify(test::programs_of(job.design, plan)))
        ADD_FAILURE() << "batch " << trial << ": " << problem.message;
    }
    EXPECT_GT(shared, 60);
  }
}

/// What a rank's program sends to other nodes.
int64_t sent_between_nodes(const program::Program& program, int64_t rank, int64_t per_node) {
  int64_t bytes = 0;
  program::for_each_instance(program, [&](const program::Op& op, const program::Loops& loops) {
    if (op.kind != program::OpKind::kSend) return;
    const program::Group& group = program.groups[static_cast<size_t>(op.group)];
    if (group.member(rank, op.peer.constant) / per_node == rank / per_node) return;
    const program::Operand& sent = op.reads.front();
    bytes += program::value_bytes(program, program.arrays[static_cast<size_t>(sent.array)], rank,
                                  program::evaluate(sent.index, loops));
  });
  return bytes;
}

/// Of each rank's link, for every way across: what its program sends is what the plan says, and
/// proxies or orders share what one link carries without.
TEST_F(PlannedPrograms, BytesOfEachLinkAreThoseOfThePlan) {
  const std::vector<int64_t> lengths = {240, 200, 160, 33, 8};
  std::vector<int64_t> off;
  for (const char* routing : {"off", "2", "whole:2", "rotate:2"})
    for (const char* remap : {"none", "residual"}) {
      SCOPED_TRACE(fmt::format("routing {}, remap {}", routing, remap));
      const Job job = make_job(run_of("even", {fmt::format("sequence.routing={}", routing),
                                               fmt::format("sequence.remap={}", remap)}),
                               4);
      const auto plan = job.design.planner->plan(lengths);
      std::vector<int64_t> links = sequence::bytes_over_links(*plan, job.design.planner->layer());
      for (int64_t rank = 0; rank < 4; ++rank) {
        const program::Program program =
            strategy::compose_for_plan(job.design, strategy::kSteady, rank, plan);
        EXPECT_EQ(sent_between_nodes(program, rank, 2), 2 * links[static_cast<size_t>(rank)]);
      }
      if (std::string(remap) != "none") continue;
      if (off.empty()) off = links;
      const double even = static_cast<double>(off[1]) / 2;
      for (const int64_t bytes : links)
        if (std::string(routing) != "off") {
          EXPECT_NEAR(static_cast<double>(bytes), even, 0.05 * even);
        }
    }
  EXPECT_EQ(off[0], 0);
  EXPECT_EQ(off[2], 0);
}

/// As many proxies, or orders, as nodes have links, where that is faster.
TEST_F(PlannedPrograms, TransfersAreRoutedOverTheLinksOfTheCluster) {
  const auto plan_of = [&](const char* routing, const char* inside, int64_t links,
                           const char* key_heads = "2") {
    const std::string levels = fmt::format(
        "cluster.levels=[{{ name = \"node\", size = 2, gb_per_second = {}, latency_microseconds = "
        "0.0 }}, {{ name = \"across\", gb_per_second = 1e-3, latency_microseconds = 0.0, links = "
        "{} }}]",
        inside, links);
    const strait::Run run = run_of("even", {fmt::format("sequence.routing={}", routing), levels,
                                            fmt::format("model.shape.kv_heads={}", key_heads)});
    const auto planner = strategy::make_design(run, 4, 24, 0, nullptr).planner;
    return planner->plan(std::vector<int64_t>{240, 200, 160});
  };
  const auto proxies = [&](const char* routing, const char* inside, int64_t links) {
    return plan_of(routing, inside, links)->proxies;
  };
  const auto rotations = [&](const char* routing, const char* inside, int64_t links) {
    return plan_of(routing, inside, links)->rotations;
  };
  EXPECT_EQ(proxies("auto", "10", 1), 1);
  EXPECT_EQ(rotations("auto", "10", 1), 1);
  EXPECT_EQ(rotations("auto", "10", 2), 2);  // nothing is moved twice
  EXPECT_EQ(proxies("auto", "10", 2), 1);
  EXPECT_EQ(plan_of("auto", "10", 2, "1")->proxies, 2);  // one key head cannot be parted
  EXPECT_EQ(plan_of("auto", "10", 2, "1")->rotations, 1);
  for (const char* routing : {"auto", "off"}) {
    EXPECT_EQ(proxies(routing, "1e-4", 2), 1);  // dispatch would take longer
    EXPECT_EQ(rotations(routing, "1e-4", 2), 1);
  }
  EXPECT_EQ(proxies("off", "10", 2), 1);
  EXPECT_EQ(rotations("off", "10", 2), 1);
  EXPECT_EQ(proxies("2", "1e-4", 1), 2);
  EXPECT_EQ(rotations("2", "10", 2), 1);
  EXPECT_EQ(proxies("whole:2", "1e-4", 1), 2);
  EXPECT_EQ(rotations("rotate", "1e-4", 1), 2);
  EXPECT_EQ(rotations("rotate:2", "1e-4", 1), 2);
  EXPECT_EQ(proxies("rotate:2", "1e-4", 1), 1);
  const auto refused = [&](const char* routing, const char* key_heads, const char* text) {
    try {
      plan_of(routing, "10", 2, key_heads);
      ADD_FAILURE() << routing;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
    }
  };
  refused("3", "2", "the nearest valid value is \"2\"");
  refused("whole:3", "2", "the nearest valid value is \"whole:2\"");
  refused("rotate:3", "4",
          "a node has 2 ranks of mesh.axes.sequence; the nearest valid value is \"rotate:2\"");
  refused("rotate:2", "1", "a rank has 1 key heads; the nearest valid value is \"auto\"");
  refused("rotate", "1", "a rank has 1 key heads; the nearest valid value is \"auto\"");
}

/// Proxies gain what their links carry: no step takes less time than the messages that leave a node
/// need on its links.
TEST_F(PlannedPrograms, OneLinkGainsNothingByProxies) {
  constexpr double kRate = 1e6;  // bytes per second
  struct Times {
    double priced, simulated, of_link;
  };
  const auto seconds = [&](const char* routing, int64_t links) -> Times {
    const std::string levels = fmt::format(
        "cluster.levels=[{{ name = \"node\", size = 2, gb_per_second = 10.0, latency_microseconds "
        "= "
        "0.0 }}, {{ name = \"across\", gb_per_second = {}, latency_microseconds = 0.0, links = {} "
        "}}]",
        kRate / 1e9, links);
    const strait::Run run = run_of("even", {fmt::format("sequence.routing={}", routing), levels});
    const strategy::Design design = strategy::make_design(run, 4, 24, 0, nullptr);
    const strategy::BatchPlanner& planner = *design.planner;
    const sim::Result result = sim::simulate(design.round.classes, design.cluster);
    return {planner.price(*planner.plan(planner.assumed_lengths(800))).attention_slowest,
            result.seconds,
            static_cast<double>(test::bytes_of(result.traffic, 1)[{"send", 1}]) / 2 / kRate};
  };
  const Times off = seconds("off", 1);
  EXPECT_GE(off.simulated, off.of_link);
  for (const char* routing : {"2", "whole:2", "rotate:2"}) {
    SCOPED_TRACE(routing);
    const Times one = seconds(routing, 1), two = seconds(routing, 2);
    EXPECT_GT(one.priced, 0.99 * off.priced);
    EXPECT_GE(one.simulated, one.of_link);
    EXPECT_LT(two.priced, 0.6 * off.priced);
    EXPECT_LT(two.simulated, 0.7 * off.simulated);
    EXPECT_GE(two.simulated, two.of_link / 2);
  }
}

/// On fast links tokens are remapped wherever that evens something out, on slow ones never.
TEST_F(PlannedPrograms, TokensAreRemappedWhereThatIsCheaper) {
  const auto planner_of = [&](const char* remap, const char* rate, const char* latency) {
    const std::string links = fmt::format(
        "cluster.levels=[{{ name = \"node\", size = 2, gb_per_second = {0}, latency_microseconds = "
        "{1} }}, {{ name = \"across\", gb_per_second = {0}, latency_microseconds = {1} }}]",
        rate, latency);
    const strait::Run run = run_of(
        "packed", {fmt::format("sequence.remap={}", remap), links, "sequence.capacity_tokens=400"});
    return strategy::make_design(run, 4, 24, 0, nullptr).planner;
  };
  const std::vector<int64_t> uneven = {240, 60, 60, 60}, even = {100, 100, 100, 100};
  using sequence::Remapping;
  const auto remapping = [&](const char* remap, const char* rate, const char* latency,
                             const std::vector<int64_t>& lengths) {
    return planner_of(remap, rate, latency)->plan(lengths)->remapping;
  };
  EXPECT_EQ(remapping("auto", "1e5", "0.0", uneven), Remapping::kQkv);
  EXPECT_EQ(remapping("auto", "1e5", "0.0", even), Remapping::kNone);
  EXPECT_EQ(remapping("auto", "1e-3", "0.0", uneven), Remapping::kNone);
  EXPECT_EQ(remapping("auto", "1e5", "1e5", uneven), Remapping::kNone);
  EXPECT_EQ(remapping("qkv", "1e-3", "0.0", uneven), Remapping::kQkv);
  EXPECT_EQ(remapping("residual", "1e-3", "0.0", uneven), Remapping::kResidual);
  EXPECT_EQ(remapping("none", "1e5", "0.0", uneven), Remapping::kNone);
  for (const char* rate : {"1e5", "0.1", "1e-3"}) {
    const auto layer = [&](const char* remap) {
      const auto planner = planner_of(remap, rate, "1.0");
      return planner->price(*planner->plan(uneven)).layer();
    };
    EXPECT_EQ(layer("auto"), std::min({layer("none"), layer("qkv"), layer("residual")})) << rate;
  }
}

/// What stands before and behind messages of moved rows reads and writes them, of every rank as
/// often as the closed form says; where a gradient of the residual stream has left, zeros are
/// written.
TEST_F(PlannedPrograms, SimulationsCountTheCopiesOfRemappedRows) {
  constexpr double kRate = 1e6;  // bytes per second
  for (const char* remap : {"qkv", "residual"}) {
    SCOPED_TRACE(remap);
    const strategy::Design design = strategy::make_design(
        run_of("packed", {fmt::format("sequence.remap={}", remap), "sequence.capacity_tokens=400"}),
        4, 24, 0, nullptr);
    Cluster cluster = design.cluster;
    cluster.memory_bytes_per_second = kRate;
    std::vector<trace::Recorder> recorders;
    const sim::Result result = sim::simulate(design.round.classes, cluster, &recorders);
    const strategy::BatchPlanner& planner = *design.planner;
    const auto plan = planner.plan(planner.assumed_lengths(800));
    const double row = 8.0 * static_cast<double>(moved_numbers(plan->remapping, planner.layer()));
    std::vector<double> want(4, 0);
    for (const sequence::Move& move : sequence::remap_of(*plan).moves) {
      const double rows = 2.0 * static_cast<double>(move.tokens);  // of two layers
      for (const int32_t rank : {move.from, move.to})
        want[static_cast<size_t>(rank)] += rows * 2 * 2 * row / kRate;  // both phases
      if (plan->remapping == sequence::Remapping::kResidual)
        want[static_cast<size_t>(move.to)] += rows * 8 * 16 / kRate;
    }
    EXPECT_GT(*std::ranges::max_element(want), 0);
    for (size_t at = 0; at < recorders.size(); ++at) {
      double copying = 0;
      for (const trace::Span& span : recorders[at].spans())
        for (int number = 0; number < kNumRemapSteps; ++number)
          if (recorders[at].names()[static_cast<size_t>(span.name)].find(
                  remap_step_name(static_cast<RemapStep>(number))) != std::string::npos)
            copying += span.time.end - span.time.begin;
      const double expected = want[static_cast<size_t>(result.representatives[at].rank)];
      EXPECT_NEAR(copying, expected, 1e-6 * expected + 1e-12);
    }
  }
}

/// Two rings of the same ranks: one rank that takes the second first is found.
TEST_F(PlannedPrograms, ARankThatTakesRingsInAnotherOrderIsFound) {
  const Job job = make_job(run_of("even"), 4);
  const auto plan_of = [&](std::vector<int32_t> first, std::vector<int32_t> second) {
    auto plan = std::make_shared<sequence::Plan>();
    plan->grid = {2, 2};
    plan->lengths = {200, 100};
    const auto ring = [&](std::vector<int32_t> documents) -> sequence::Group {
      return {.zone = sequence::Zone::kInter, .ranks = {0, 1, 2, 3}, .documents = documents};
    };
    plan->groups = {ring(first), ring(second)};
    return plan;
  };
  program::ProgramSet set = test::programs_of(job.design, plan_of({0}, {1}));
  EXPECT_TRUE(program::verify(set).empty());
  for (program::StepKind& kind : set.kinds)
    if (kind.name == strategy::kSteady)
      kind.classes[1] = strategy::compose_for_plan(job.design, kind.name, 1, plan_of({1}, {0}));
  EXPECT_FALSE(program::verify(set).empty());
}

/// Z13: its plan is there when it is due. A rank's first batch is not read before the rank has
/// planned its next one.
TEST_F(PlannedPrograms, ABatchIsPlannedWhileTheOneBeforeItIsTrainedOn) {
  struct Count {
    std::mutex mutex;
    std::condition_variable changed;
    int64_t planned = 0, in_time = 0;
  } count;
  const Job job = make_job(run_of("zeppelin"), 4);
  train::Hooks hooks;
  hooks.lengths_read = [&](int64_t rank, std::vector<int64_t>&) {
    if (rank != 1) return;
    const std::lock_guard lock(count.mutex);
    ++count.planned;
    count.changed.notify_all();
  };
  train::Observer observer;
  observer.loaded = [&](int64_t step, const BatchBuffer&) {
    if (step == 2) return;  // the last
    std::unique_lock lock(count.mutex);
    count.in_time += count.changed.wait_for(lock, std::chrono::seconds(20),
                                            [&] { return count.planned >= step + 2; });
  };
  const std::atomic<int> no_signal{0};
  train::Outcome outcome;
  train::train(job, observer, no_signal, outcome, hooks);
  EXPECT_EQ(count.planned, 3);
  EXPECT_EQ(count.in_time, 2 * 4);
}

/// Before the first transfer of the batch, by every rank.
TEST_F(PlannedPrograms, ARankThatReadsOtherLengthsIsNamed) {
  const Job job = make_job(run_of("zeppelin"), 4);
  train::Hooks hooks;
  hooks.lengths_read = [batches = std::make_shared<std::atomic<int>>(0)](
                           int64_t rank, std::vector<int64_t>& lengths) {
    if (rank == 2 && ++*batches == 2) lengths.front() += 1;
  };
  try {
    outcome_of(job, hooks);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 2 has planned another batch"));
    EXPECT_EQ(error.place().step, 2);
  }
}

}  // namespace
}  // namespace strait
