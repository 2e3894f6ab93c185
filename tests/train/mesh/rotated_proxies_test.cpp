// Keys in several orders around rings that cross nodes, each over proxies of its own
// (sequence.routing "both:N"): legal, exact in bytes, taken where key heads are fewer than links
// (specs: sequences 9d, Z5, Z6, Z15).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/random.h"
#include "strait/sequence/report.h"
#include "strait/sim/simulate.h"
#include "strait/verify/verify.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::small_run;
using testing::HasSubstr;
using Sets = std::vector<std::string>;

/// Two nodes of four ranks.
class RotatedProxies : public test::MeshRuns {
 protected:
  strategy::Design design_of(const std::string& routing, const Sets& more = {}) {
    Sets sets = {"sequence.engine=even",          "sequence.routing=" + routing,
                 "sequence.remap=none",           "mesh.axes.sequence=8",
                 "data.document_separator=wide.", "train.global_batch_size=12",
                 "train.global_batch_tokens=800", "model.family=llama",
                 "model.shape.kv_heads=2",        "model.shape.tied_head=false",
                 "model.shape.layers=2",          "model.shape.heads=4",
                 "model.shape.width=16",          "model.shape.ffn_width=24",
                 "model.shape.vocabulary=24",     "model.shape.context=240",
                 "placement.preset=ddp",          levels("1e5", "6e3", 1),
                 "sequence.capacity_tokens=300"};
    sets.insert(sets.end(), more.begin(), more.end());
    return strategy::make_design(small_run(folder_.path(), sets), 8, 24, 0, nullptr);
  }
  static std::string levels(const char* inside, const char* between, int64_t links) {
    return fmt::format(
        "cluster.levels=[{{ name = \"node\", size = 4, gb_per_second = {}, latency_microseconds = "
        "0.0 }}, {{ name = \"across\", gb_per_second = {}, latency_microseconds = 0.0, links = {} "
        "}}]",
        inside, between, links);
  }
};

program::ProgramSet programs_of(const strategy::Design& design,
                                const std::shared_ptr<const sequence::Plan>& plan) {
  program::ProgramSet set = design.programs;
  for (program::StepKind& kind : set.kinds) {
    if (kind.name != strategy::kSteady) continue;
    for (size_t rank = 0; rank < kind.classes.size(); ++rank)
      kind.classes[rank] =
          strategy::compose_for_plan(design, kind.name, static_cast<int64_t>(rank), plan);
  }
  return set;
}

/// What a rank's program sends to other nodes.
int64_t sent_between_nodes(const program::Program& program, int64_t rank) {
  int64_t bytes = 0;
  program::for_each_instance(program, [&](const program::Op& op, const program::Loops& loops) {
    if (op.kind != program::OpKind::kSend) return;
    const program::Group& group = program.groups[static_cast<size_t>(op.group)];
    if (group.member(rank, op.peer.constant) / 4 == rank / 4) return;
    const program::Operand& sent = op.reads.front();
    bytes += program::value_bytes(program, program.arrays[static_cast<size_t>(sent.array)], rank,
                                  program::evaluate(sent.index, loops));
  });
  return bytes;
}

TEST_F(RotatedProxies, AreLegalAndSendWhatThePlanSays) {
  for (const char* engine : {"even", "zeppelin"}) {
    const strategy::Design design =
        design_of("both:4", {fmt::format("sequence.engine={}", engine)});
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{240, 200, 160, 33, 8}, {240, 240, 240}, {64, 9}}) {
      const auto plan = design.planner->plan(lengths);
      const program::ProgramSet set = programs_of(design, plan);
      for (const program::Problem& problem : program::verify(set)) ADD_FAILURE() << problem.message;
      if (std::string(engine) != "even") continue;
      EXPECT_EQ(plan->rotations, 2);
      EXPECT_EQ(plan->proxies, 2);
      const auto links = sequence::bytes_over_links(*plan, design.planner->layer());
      for (const program::StepKind& kind : set.kinds)
        for (size_t rank = 0; kind.name == strategy::kSteady && rank < 8; ++rank)
          EXPECT_EQ(sent_between_nodes(kind.classes[rank], static_cast<int64_t>(rank)),
                    2 * links[rank]);
    }
  }
}

/// Four links and two key heads: orders alone leave two links idle, proxies alone dispatch more.
TEST_F(RotatedProxies, AreTakenWhereKeyHeadsAreFewerThanLinks) {
  const std::vector<int64_t> lengths = {240, 200, 160};
  const auto plan_of = [&](const char* routing, int64_t links, const char* key_heads) {
    return design_of(routing, {levels("16e-3", "1e-3", links),
                               fmt::format("model.shape.kv_heads={}", key_heads)})
        .planner->plan(lengths);
  };
  const auto two = plan_of("auto", 4, "2");
  EXPECT_EQ(two->rotations, 2);
  EXPECT_EQ(two->proxies, 2);
  EXPECT_EQ(plan_of("auto", 4, "4")->proxies, 1);
  EXPECT_EQ(plan_of("auto", 4, "4")->rotations, 4);
  EXPECT_EQ(plan_of("auto", 4, "1")->rotations, 1);
  EXPECT_EQ(plan_of("auto", 4, "1")->proxies, 4);
  EXPECT_EQ(plan_of("auto", 2, "2")->proxies, 1);
  const auto seconds = [&](const char* routing) {
    const strategy::Design design =
        design_of(routing, {levels("16e-3", "1e-3", 4), "model.shape.kv_heads=2"});
    return std::pair(design.planner->price(*design.planner->plan(lengths)).attention_slowest,
                     sim::simulate(design.round.classes, design.cluster).seconds);
  };
  const auto [both, both_simulated] = seconds("both:4");
  for (const char* other : {"4", "rotate", "off"}) {
    SCOPED_TRACE(other);
    const auto [alone, alone_simulated] = seconds(other);
    EXPECT_LT(both, alone);
    EXPECT_LT(both_simulated, alone_simulated);
  }
}

TEST_F(RotatedProxies, WhatDoesNotFitIsRefused) {
  const auto refusal = [&](const char* routing, const Sets& more) {
    return refusal_of([&] { design_of(routing, more); });
  };
  EXPECT_THAT(refusal("both:4", {"model.shape.kv_heads=1"}),
              HasSubstr("a rank has 1 key head, of which there is one order; the nearest valid "
                        "value is \"4\""));
  EXPECT_THAT(refusal("both:5", {}), HasSubstr("a node has 4 ranks of mesh.axes.sequence; the "
                                               "nearest valid value is \"both:4\""));
  EXPECT_THAT(refusal("both:3", {}), HasSubstr("sequence.routing"));
  EXPECT_THAT(refusal("both:4", {"mesh.axes.sequence=4"}), HasSubstr("stays inside a node"));
}

}  // namespace
}  // namespace strait
