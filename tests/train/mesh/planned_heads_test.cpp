// Heads exchanged for documents whose rings cross nodes (sequence.head_ranks with planned batches):
// trains as one rank does, exact in bytes, as large as predicted, proved legal (specs: sequences
// 9d, Z3, Z5, Z10, Z14, Z15).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "strait/base/random.h"
#include "strait/program/program.h"
#include "strait/report/metrics.h"
#include "strait/sequence/remap.h"
#include "strait/sequence/report.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/expected_batch.h"
#include "strait/verify/verify.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/mesh/plan_programs.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::Bytes;
using test::small_run;
using test::Trained;
using testing::HasSubstr;
using Sets = std::vector<std::string>;

const Sets kGpt2 = {};
const Sets kLlama = {"model.family=llama", "model.shape.kv_heads=4", "model.shape.tied_head=false"};
const Sets kNormed = {"model.family=qwen3", "model.shape.kv_heads=4", "model.shape.bias=false"};
const Sets kAlternating = {"model.family=gemma3",          "model.shape.window=9",
                           "model.shape.window_pattern=2", "model.shape.query_scalar=7",
                           "model.shape.bias=false",       "model.shape.kv_heads=4"};
const Sets kCapped = {"model.family=gemma2",        "model.shape.window=9",
                      "model.shape.query_scalar=7", "model.shape.bias=false",
                      "model.shape.kv_heads=4",     "model.shape.score_cap=0.1",
                      "model.shape.logit_cap=1"};

constexpr int64_t kAuto = -1;

/// `nodes` of `per_node` ranks that share documents, of which `heads` neighbours exchange heads.
struct Case {
  std::string engine;
  int64_t nodes = 2, per_node = 2, heads = 2;
  Sets family = kLlama;
  Sets how = {};
  int64_t others = 1;  // ranks of other axes
  std::string head_ranks() const { return heads == kAuto ? "auto" : std::to_string(heads); }
  int64_t sharers() const { return nodes * per_node; }
  int64_t ranks() const { return sharers() * others; }
  std::string text() const {
    return fmt::format("{}, {} nodes of {}, {} heads, {}; {}", engine, nodes, per_node,
                       head_ranks(), fmt::join(family, ", "), fmt::join(how, ", "));
  }
};

class PlannedHeads : public test::MeshRuns {
 protected:
  static std::string levels(int64_t per_node, double gb_per_second = 6e3) {
    return fmt::format(
        "cluster.levels=[{{ name = \"node\", size = {}, gb_per_second = 1e5, latency_microseconds "
        "= 0.0 }}, {{ name = \"across\", size = 0, gb_per_second = {}, latency_microseconds = 0.0 "
        "}}]",
        per_node, gb_per_second);
  }
  /// Links so fast that documents of these lengths are shared by ranks of both nodes.
  strait::Run run_of(const Case& c, const Sets& more = {}) {
    const int64_t stride = c.ranks() / c.sharers();
    Sets sets = {"sequence.engine=" + c.engine,
                 fmt::format("mesh.axes.sequence={}", c.sharers()),
                 "sequence.head_ranks=" + c.head_ranks(),
                 levels(c.per_node * stride),
                 "sequence.plan=true",
                 "sequence.capacity_tokens=300"};
    Sets all = alone(c.family);
    all.insert(all.end(), sets.begin(), sets.end());
    for (const Sets* other : {&c.how, &more}) all.insert(all.end(), other->begin(), other->end());
    return small_run(folder_.path(), all);
  }
  static Sets alone(const Sets& family) {
    Sets sets = {"data.document_separator=wide.", "train.global_batch_size=12",
                 "train.global_batch_tokens=800", "train.steps=6",
                 "train.clip_norm=0.3",           "optimizer.decay_steps=20",
                 "evaluation.every_steps=3",      "runtime.threads_per_rank=1",
                 "model.shape.layers=2",          "model.shape.heads=8",
                 "model.shape.kv_heads=8",        "model.shape.width=32",
                 "model.shape.ffn_width=24",      "model.shape.vocabulary=24",
                 "model.shape.context=240",       "placement.preset=ddp"};
    sets.insert(sets.end(), family.begin(), family.end());
    return sets;
  }
  /// Documents whose heads are exchanged, of all steps.
  static int64_t exchanged_in(const std::string& folder) {
    int64_t documents = 0;
    for (const report::StepMetrics& step : report::read_metrics(folder + "/metrics.jsonl"))
      documents += step.sequence_plan.at("heads").at("documents").as_integer();
    return documents;
  }
  Job job_of(const Case& c, const Sets& more = {}) {
    strait::Run run = run_of(c, more);
    run.output.run_dir = next_folder();
    return make_job(run, c.ranks());
  }
  std::string refusal(const Case& c, const Sets& more = {}) {
    return refusal_of([&] { make_job(run_of(c, more), c.ranks()); });
  }
  /// Returns the numbers of neighbours that exchanged heads in some step.
  std::set<int64_t> expect_one_rank(const std::vector<Case>& cases) {
    std::map<Sets, Trained> serial;
    std::set<int64_t> taken;
    for (const Case& c : cases) {
      SCOPED_TRACE(c.text());
      const auto [found, fresh] = serial.try_emplace(c.family);
      if (fresh)
        found->second = test::trained(small_run(folder_.path(), alone(c.family)), 1, next_folder());
      const std::string folder = next_folder();
      expect_equal(test::trained(run_of(c), c.ranks(), folder), found->second);
      EXPECT_TRUE(c.heads == kAuto || exchanged_in(folder) > 0);
      for (const report::StepMetrics& step : report::read_metrics(folder + "/metrics.jsonl"))
        taken.insert(step.sequence_plan.at("heads").at("ranks").as_integer());
    }
    return taken;
  }
};

TEST_F(PlannedHeads, TrainAsOneRankDoes) {
  std::vector<Case> cases;
  for (const Sets& family : {kGpt2, kLlama, kNormed, kAlternating, kCapped})
    for (const char* engine : {"even", "zeppelin"}) cases.push_back({engine, 2, 2, 2, family});
  for (const auto& [nodes, per_node, heads] :
       {std::tuple(2, 4, 2), std::tuple(2, 4, 4), std::tuple(3, 2, 2)})
    for (const char* engine : {"even", "hybrid", "zeppelin"})
      cases.push_back({engine, nodes, per_node, heads});
  expect_one_rank(cases);
}

TEST_F(PlannedHeads, TrainAsOneRankDoesBesideWhatElsePlansDo) {
  std::vector<Case> cases;
  for (const char* remap : {"none", "qkv", "residual"})
    for (const char* fill : {"true", "false"})
      cases.push_back({.engine = "zeppelin",
                       .per_node = 2,
                       .how = {fmt::format("sequence.remap={}", remap),
                               fmt::format("sequence.fill={}", fill)}});
  cases.push_back({.engine = "even", .how = {"train.recompute=block"}});
  cases.push_back({.engine = "zeppelin", .how = {"train.recompute=every:2", "sequence.remap=qkv"}});
  cases.push_back({.engine = "zeppelin", .how = {"placement.preset=zero3"}});
  cases.push_back({.engine = "zeppelin", .how = {"mesh.axes.x=2"}, .others = 2});
  cases.push_back(
      {.engine = "even", .how = {"mesh.axes.x=2", "tensor.sequence_parallel=true"}, .others = 2});
  cases.push_back({.engine = "zeppelin", .how = {"mesh.axes.y=2"}, .others = 2});
  expect_one_rank(cases);
}

/// As many as are cheapest: batches differ in them, and so do the rows of one batch.
TEST_F(PlannedHeads, TrainAsOneRankDoesWithAsManyAsAreCheapest) {
  std::vector<Case> cases;
  for (const double rate : {0.1, 1.0, 100.0}) {
    for (const char* engine : {"even", "hybrid", "zeppelin"})
      cases.push_back({engine, 2, 4, kAuto, kLlama, {levels(4, rate)}});
    cases.push_back(
        {"zeppelin", 2, 2, kAuto, kLlama, {levels(2, rate), "placement.preset=zero3"}, 2});
    cases.push_back({"hybrid", 2, 2, kAuto, kGpt2, {levels(2, rate), "train.recompute=block"}, 2});
  }
  EXPECT_GE(expect_one_rank(cases).size(), 2U);
}

/// In bf16 norms of gradients are those of one rank but for rounding (2^-9 each).
TEST_F(PlannedHeads, GradientsInBfloat16AreThoseOfOneRank) {
  const auto norms = [&](const strait::Run& run, int64_t ranks) {
    const std::string folder = next_folder();
    test::train_small(run, ranks, folder);
    std::vector<double> of_steps;
    for (const report::StepMetrics& step : report::read_metrics(folder + "/metrics.jsonl"))
      of_steps.push_back(step.gradient_norm);
    return of_steps;
  };
  const Sets bf16 = {"train.precision=bf16", "train.steps=3"};
  Sets of_one = alone(kLlama);
  of_one.insert(of_one.end(), bf16.begin(), bf16.end());
  const std::vector<double> one = norms(small_run(folder_.path(), of_one), 1);
  for (const char* engine : {"even", "zeppelin"})
    for (const char* remap : {"none", "qkv"}) {
      SCOPED_TRACE(fmt::format("{}, remap {}", engine, remap));
      Sets sets = bf16;
      sets.push_back(fmt::format("sequence.remap={}", remap));
      const std::vector<double> got = norms(run_of({.engine = engine}, sets), 4);
      ASSERT_EQ(got.size(), one.size());
      for (size_t step = 0; step < got.size(); ++step)
        EXPECT_NEAR(got[step] / one[step], 1, 0.004) << "step " << step;
    }
}

/// What a step moves beside attention, of ranks that share documents alone.
void add_step(Bytes& bytes, const Job& job) {
  const int64_t ranks = job.design.batch.ranks;
  for (const UnitShape& unit : job.design.shape.units)
    test::add_exchange(bytes, "all-reduce", 2 * unit.elements * 8, {ranks, 1});
  test::add_exchange(bytes, "all-reduce", 2 * test::kAgreedBytes, {ranks, 1});
}

int64_t of_level(const Bytes& bytes, size_t level) {
  int64_t sum = 0;
  for (const auto& [row, moved] : bytes)
    if (row.second == static_cast<int64_t>(level)) sum += moved;
  return sum;
}

/// Z5: inside nodes and between them.
TEST_F(PlannedHeads, BytesAreClosedFormsInAllReaders) {
  for (const auto& [engine, remap, recompute] :
       {std::tuple("even", "none", "none"), std::tuple("even", "none", "block"),
        std::tuple("zeppelin", "none", "none"), std::tuple("zeppelin", "qkv", "none"),
        std::tuple("zeppelin", "residual", "none"), std::tuple("hybrid", "none", "none")}) {
    SCOPED_TRACE(fmt::format("{}, remap {}, recompute {}", engine, remap, recompute));
    const bool again = std::string(recompute) == "block";
    const Job job = job_of({.engine = engine}, {fmt::format("sequence.remap={}", remap),
                                                fmt::format("train.recompute={}", recompute),
                                                "train.steps=3", "evaluation.every_steps=0"});
    const train::Outcome outcome = test::outcome_of(job);
    Bytes want, of_expected;
    for (const report::StepMetrics& step :
         report::read_metrics(job.folder.path + "/metrics.jsonl")) {
      const Bytes before = want;
      for (const auto& [member, level] :
           {std::pair("bytes_inside_nodes", 0), std::pair("bytes_between_nodes", 1)})
        for (const Json* part : {&step.sequence_plan, &step.sequence_plan.at("linear")}) {
          const Json& traffic = part->at(member);
          want[{"send", level}] += (again ? 2 : 1) * traffic.at("forward").as_integer() +
                                   traffic.at("backward").as_integer();
        }
      add_step(want, job);
      for (const size_t level : {0, 1})
        EXPECT_EQ(step.bytes_per_level[level].bytes,
                  of_level(want, level) - of_level(before, level))
            << "step " << step.step;
    }
    for (const int64_t level : {0, 1}) EXPECT_GT((want[{"send", level}]), 0);
    EXPECT_GT(exchanged_in(job.folder.path), 0);
    EXPECT_EQ(test::bytes_of(outcome.traffic, 1), want);
    const strategy::BatchPlanner& planner = *job.design.planner;
    const auto plan = planner.plan(
        strategy::expected_lengths(job.design.run, 1, planner, *job.corpus).median.front());
    const auto add = [&](const sequence::LevelTraffic& traffic) {
      for (const auto& [of_level, level] :
           {std::pair(traffic.inside, 0), std::pair(traffic.between, 1)})
        of_expected[{"send", level}] +=
            2 * ((again ? 2 : 1) * of_level.forward + of_level.backward);
    };
    add(sequence::plan_traffic(*plan, planner.layer()));
    add(sequence::remap_traffic(*plan, planner.layer()));
    add_step(of_expected, job);
    std::erase_if(of_expected, [](const auto& row) { return row.second == 0; });
    EXPECT_EQ(test::bytes_of(job.simulated.traffic, 1), of_expected);
    EXPECT_EQ(test::bytes_of(job.cost.traffic, 1), of_expected);
  }
}

TEST_F(PlannedHeads, MemoryIsWhatTheAllocatorSaw) {
  for (const char* engine : {"even", "zeppelin"})
    for (const Sets& more :
         {Sets{"sequence.remap=none"}, Sets{"sequence.remap=qkv"}, Sets{"train.recompute=block"},
          Sets{"train.precision=bf16", "placement.preset=zero3"}}) {
      SCOPED_TRACE(fmt::format("{}, {}", engine, more.front()));
      Sets sets = {"train.steps=1", "sequence.capacity_tokens=400", "evaluation.every_steps=0"};
      sets.insert(sets.end(), more.begin(), more.end());
      test::expect_predicted_memory(
          test::outcome_of(job_of({.engine = engine, .per_node = 4, .heads = 4}, sets)));
    }
}

/// Batches of 1 to 40 documents, short ones of fewer tokens than ranks among them.
TEST_F(PlannedHeads, TheProgramsOfAnyPlanAreLegalTogether) {
  const RandomStream stream(12, "batches");
  for (const auto& [engine, remap] :
       {std::pair("zeppelin", "none"), std::pair("even", "none"), std::pair("zeppelin", "qkv"),
        std::pair("hybrid", "residual")}) {
    const Job job = job_of({.engine = engine, .per_node = 4, .heads = 2},
                           {fmt::format("sequence.remap={}", remap), "placement.preset=zero3"});
    int64_t exchanged = 0;
    for (uint64_t trial = 0; trial < 25; ++trial) {
      std::vector<int64_t> lengths;
      int64_t left = 4 + static_cast<int64_t>(stream.below(3 * trial, 1400));
      for (uint64_t document = 0; left > 0 && document < 40; ++document) {
        const RandomStream of(stream.key(), "length", trial, document);
        lengths.push_back(std::min<int64_t>(
            left, 1 + static_cast<int64_t>(of.below(0, of.below(1, 3) == 0 ? 240 : 12))));
        left -= lengths.back();
      }
      const auto plan = job.design.planner->plan(lengths);
      for (const sequence::Group& group : plan->groups)
        exchanged += sequence::head_ranks_of(*plan, group) > 1;
      for (const program::Problem& problem : program::verify(test::programs_of(job.design, plan)))
        ADD_FAILURE() << engine << ", batch " << trial << ": " << problem.message;
    }
    EXPECT_GT(exchanged, 5) << engine;
  }
}

/// Z15: heads that are dropped, or sent or placed twice, by one rank are found.
TEST_F(PlannedHeads, ABlockOfHeadsThatIsDroppedOrDoubledIsFound) {
  const Job job = job_of({.engine = "even"});
  const auto plan = job.design.planner->plan(std::vector<int64_t>{200, 100});
  const program::ProgramSet legal = test::programs_of(job.design, plan);
  ASSERT_TRUE(program::verify(legal).empty());
  using Nodes = std::vector<program::Node>;
  const auto is_exchange = [](const program::Program& program, const program::Op& op) {
    if (op.kind != program::OpKind::kSend && op.kind != program::OpKind::kReceive) return false;
    const auto& moved = op.kind == program::OpKind::kSend ? op.reads : op.writes;
    return program.arrays[static_cast<size_t>(moved.front().array)].name.find("_of_heads") !=
           std::string::npos;
  };
  int64_t broken = 0;
  for (const program::OpKind kind : {program::OpKind::kSend, program::OpKind::kReceive})
    for (const bool doubles : {false, true})
      for (int64_t number = 0;; ++number) {
        program::ProgramSet set = legal;
        for (program::StepKind& step : set.kinds) {
          if (step.name != strategy::kSteady) continue;
          program::Program& program = step.classes[1];
          int64_t seen = 0;
          const std::function<bool(Nodes&)> change = [&](Nodes& nodes) {
            for (size_t at = 0; at < nodes.size(); ++at) {
              if (auto* loop = std::get_if<program::Repeat>(&nodes[at])) {
                if (change(loop->body)) return true;
                continue;
              }
              const auto& op = std::get<program::Op>(nodes[at]);
              if (op.kind != kind || !is_exchange(program, op) || seen++ != number) continue;
              if (doubles)
                nodes.insert(nodes.begin() + static_cast<int64_t>(at), nodes[at]);
              else
                nodes.erase(nodes.begin() + static_cast<int64_t>(at));
              return true;
            }
            return false;
          };
          if (!change(program.body)) number = -2;
        }
        if (number < 0) break;
        ++broken;
        EXPECT_FALSE(program::verify(set).empty())
            << "number " << number << ", doubled " << doubles;
      }
  EXPECT_GE(broken, 2 * 2 * 4);
}

/// Whatever the plan, ranks that do not exchange heads have the programs of before.
TEST_F(PlannedHeads, OneNeighbourIsAPlainRing) {
  const auto program = [&](const Sets& more) {
    return program::print(job_of({.engine = "zeppelin"}, more).design.steady().front());
  };
  EXPECT_EQ(program({"sequence.head_ranks=1"}), program({"sequence.head_ranks=0"}));
  EXPECT_NE(program({"sequence.head_ranks=2"}), program({"sequence.head_ranks=0"}));
}

/// Where links between nodes are slow and each rank has one, rings of their own are faster than one
/// ring of all, and the simulator agrees with the price.
TEST_F(PlannedHeads, RingsOfTheirOwnCrossOverALinkEach) {
  const auto seconds = [&](int64_t heads, int64_t links) {
    const std::string levels = fmt::format(
        "cluster.levels=[{{ name = \"node\", size = 2, gb_per_second = 10.0, latency_microseconds "
        "= 0.0 }}, {{ name = \"across\", gb_per_second = 1e-3, latency_microseconds = 0.0, links = "
        "{} }}]",
        links);
    const strait::Run run =
        run_of({.engine = "even", .heads = heads}, {levels, "sequence.routing=off"});
    const strategy::Design design = strategy::make_design(run, 4, 24, 0, nullptr);
    const strategy::BatchPlanner& planner = *design.planner;
    return std::pair(planner.price(*planner.plan(planner.assumed_lengths(800))).attention_slowest,
                     sim::simulate(design.round.classes, design.cluster).seconds);
  };
  const auto [plain, plain_simulated] = seconds(1, 2);
  const auto [one, one_simulated] = seconds(2, 1);
  const auto [two, two_simulated] = seconds(2, 2);
  EXPECT_LT(two, 0.4 * plain);  // one hop of three, of as many bytes
  EXPECT_LT(two_simulated, 0.5 * plain_simulated);
  EXPECT_LT(one, plain);
  EXPECT_LT(one_simulated, plain_simulated);
  EXPECT_NEAR(one / two, 2, 0.1);
}

TEST_F(PlannedHeads, WhatCannotBeExchangedIsRefused) {
  EXPECT_EQ(refusal({.engine = "even", .nodes = 1, .per_node = 4}),
            "sequence.head_ranks: sequence.head_ranks = 2 cannot take effect: mesh.axes.sequence "
            "stays inside a node; the nearest valid value is 0");
  EXPECT_EQ(refusal({.engine = "even", .nodes = 4, .per_node = 2, .heads = 4}),
            "sequence.head_ranks: sequence.head_ranks = 4 does not divide the 2 ranks of "
            "mesh.axes.sequence in a node; the nearest valid value is 2");
  EXPECT_EQ(refusal({.engine = "zeppelin", .heads = 3}),
            "sequence.head_ranks: sequence.head_ranks = 3 does not divide mesh.axes.sequence = 4; "
            "the nearest valid value is 2");
  EXPECT_EQ(refusal({.engine = "even", .per_node = 8, .heads = 8}),
            "sequence.head_ranks: sequence.head_ranks = 8 does not divide the 4 key heads of a "
            "rank; the nearest valid value is 4");
  EXPECT_THAT(refusal({.engine = "packed"}), HasSubstr("sequence.engine = \"packed\""));
  EXPECT_EQ(refusal({.engine = "even", .how = {"sequence.routing=2"}}),
            "sequence.routing: sequence.routing = \"2\" cannot take effect with "
            "sequence.head_ranks = 2, whose rings leave a node over the link of every rank "
            "already; the nearest valid value is \"auto\", or sequence.head_ranks = 0");
}

}  // namespace
}  // namespace strait
