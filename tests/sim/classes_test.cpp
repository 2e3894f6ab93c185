// Several rank classes side by side: pipelines against closed forms and times reckoned by hand,
// random programs against a walk over all transfers of all ranks.
#include <gtest/gtest.h>

#include <map>

#include "strait/collective/choose.h"
#include "strait/collective/of_op.h"
#include "strait/config/parse.h"
#include "strait/cost/cost.h"
#include "strait/program/classes.h"
#include "strait/program/memory.h"
#include "strait/program/transfer.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/design.h"
#include "strait/verify/verify.h"
#include "tests/program/program_builder.h"
#include "tests/program/random_set.h"
#include "tests/sanitized.h"
#include "tests/sim/pipeline_programs.h"

namespace strait {
namespace {

using program::at;
using program::Lifetime;
using program::Op;
using program::OpKind;
using program::Program;
using program::ProgramBuilder;
using sim::one_forward_one_backward;

constexpr double kTolerance = 1e-9;  // seconds; sums of a few hundred numbers near 1

/// `ranks` ranks in nodes of `inner`; a flop takes a second, a byte a microsecond unless given.
Cluster cluster_of(int64_t ranks, int64_t inner = 1, double bytes_per_second = 1e6) {
  Cluster cluster;
  cluster.ranks = ranks;
  cluster.levels = {{"node", inner, bytes_per_second, 0, 1},
                    {"world", ranks / inner, bytes_per_second, 0, 1}};
  cluster.flops_per_second_fp32 = cluster.memory_bytes_per_second = 1;
  return cluster;
}

TEST(Classes, APipelineOnFastLinksHasItsBubble) {
  for (const int64_t stages : {1, 2, 3, 4})
    for (const int64_t m : {1, 2, 4, 9})
      for (const int64_t width : {1, 3}) {
        const std::vector<Program> classes = one_forward_one_backward(stages, m, width, 4);
        ASSERT_TRUE(program::verify(classes).empty()) << program::verify(classes)[0].message;
        const sim::Result result = sim::simulate(classes, cluster_of(stages * width, width, 1e30));
        EXPECT_NEAR(result.seconds, static_cast<double>(3 * (m + stages - 1)), kTolerance);
        EXPECT_NEAR(result.compute_seconds, static_cast<double>(3 * m), kTolerance);
        EXPECT_NEAR(result.exposed_seconds, 0, kTolerance);
        EXPECT_NEAR(result.bubble_share(),
                    static_cast<double>(stages - 1) / static_cast<double>(m + stages - 1),
                    kTolerance);
        EXPECT_EQ(result.rank_classes, stages);
        ASSERT_EQ(static_cast<int64_t>(result.representatives.size()), stages);
        for (const sim::Representative& one : result.representatives) {
          EXPECT_EQ(one.count, width);
          EXPECT_EQ(one.rank, one.rank_class * width);
          EXPECT_NEAR(one.compute_seconds + one.exposed_seconds + one.bubble_seconds,
                      result.seconds, kTolerance);
        }
      }
}

/// One core for all ranks is never idle: bubbles cost nothing, and a step takes what its work
/// takes.
TEST(Classes, APipelineOnOneCoreHasNoBubble) {
  for (const int64_t stages : {1, 2, 3, 4})
    for (const int64_t m : {1, 2, 4, 9})
      for (const int64_t width : {1, 3}) {
        Cluster cluster = cluster_of(stages * width, width, 1e30);
        cluster.ranks_per_machine = stages * width;
        cluster.cores_per_machine = 1;
        const sim::Result result =
            sim::simulate(one_forward_one_backward(stages, m, width, 4), cluster);
        EXPECT_NEAR(result.seconds, static_cast<double>(3 * m), kTolerance);
        for (const sim::Representative& one : result.representatives)
          EXPECT_NEAR(one.compute_seconds + one.exposed_seconds + one.bubble_seconds,
                      result.seconds, kTolerance);
      }
}

/// Two machines of one core each, two ranks on each: only neighbours of a machine gain.
TEST(Classes, RanksTakeTurnsWithThoseOfTheirMachine) {
  Cluster cluster = cluster_of(4, 2, 1e30);
  cluster.ranks_per_machine = 2;
  cluster.cores_per_machine = 1;
  const sim::Result result = sim::simulate(one_forward_one_backward(4, 1, 1, 4), cluster);
  EXPECT_NEAR(result.seconds, 12.0 / 2, kTolerance);  // one stage at a time, at twice its pace
  EXPECT_NEAR(sim::simulate(one_forward_one_backward(2, 3, 2, 4), cluster).seconds, 12, kTolerance);
}

TEST(Classes, MessagesTakeTheTimeOfTheirBytes) {
  // One micro-batch over two stages: forward 1 s, 4 s on the link, 1 + 2 s, 4 s back, 2 s.
  const std::vector<Program> classes = one_forward_one_backward(2, 1, 1, 1'000'000);
  const sim::Result result = sim::simulate(classes, cluster_of(2));
  EXPECT_NEAR(result.seconds, 1 + 4 + 3 + 4 + 2, kTolerance);
  const sim::Representative &first = result.representatives[0], &last = result.representatives[1];
  EXPECT_NEAR(first.exposed_seconds, 4 + 4, kTolerance);  // its link is busy, out and back
  EXPECT_NEAR(first.bubble_seconds, 3, kTolerance);       // the last stage computes
  EXPECT_NEAR(last.compute_seconds, 3, kTolerance);
  EXPECT_EQ(result.level_bytes, (std::vector<int64_t>{0, 8'000'000}));
}

TEST(Classes, RanksOfANodeThatSendOutShareItsLinks) {
  // Two ranks per stage in a node: both messages leave the node together, so each takes twice as
  // long.
  const std::vector<Program> classes = one_forward_one_backward(2, 1, 2, 1'000'000);
  EXPECT_NEAR(sim::simulate(classes, cluster_of(4, 2)).seconds, 1 + 8 + 3 + 8 + 2, kTolerance);
  // With both stages in the node every message has the level to itself.
  EXPECT_NEAR(sim::simulate(classes, cluster_of(4, 4)).seconds, 1 + 4 + 3 + 4 + 2, kTolerance);
}

TEST(Classes, ARankThatSendsOutAloneHasALinkToItself) {
  // Of nodes of two, rank 1 sends to rank 2 as far as all ranks of a ring would, or to rank 3.
  for (const int64_t to : {2, 3}) {
    std::vector<Program> classes;
    for (int64_t rank = 0; rank < 4; ++rank) {
      ProgramBuilder b(4, {rank});
      const int value = b.array("value", 1, Lifetime::kResident, 1'000'000);
      if (rank == 1) b.send(at(value), to, 1);
      if (rank == to) b.receive(at(value), 1, 1);
      classes.push_back(b.take());
    }
    EXPECT_NEAR(sim::simulate(classes, cluster_of(4, 2)).seconds, 4, kTolerance) << to;
  }
}

/// Rank 0 sends to 1 and receives from it at once, or sends twice at once.
std::vector<Program> exchange_of(bool both_ways) {
  std::vector<Program> classes;
  for (int64_t rank = 0; rank < 2; ++rank) {
    ProgramBuilder b(2, {rank});
    const int out = b.array("out", 1, Lifetime::kResident, 1'000'000);
    const int in = b.array("in", 1, Lifetime::kResident, 1'000'000);
    if (rank == 0) {
      b.send(at(out), 1, 1);
      both_ways ? b.receive(at(in), 1, 2) : b.send(at(in), 1, 2);
    } else {
      b.receive(at(out), 0, 1);
      both_ways ? b.send(at(in), 0, 2) : b.receive(at(in), 0, 2);
    }
    classes.push_back(b.take());
  }
  return classes;
}

TEST(Classes, LinksCarryBothDirectionsAtFullSpeedAndShareOne) {
  EXPECT_NEAR(sim::simulate(exchange_of(true), cluster_of(2)).seconds, 4, kTolerance);
  EXPECT_NEAR(sim::simulate(exchange_of(false), cluster_of(2)).seconds, 8, kTolerance);
}

TEST(Classes, ASendHoldsUpNothingBehindIt) {
  // Rank 0 sends to rank 1, which takes it after 5 s of work. The next transfer on the lane of rank
  // 0 lands meanwhile, at 4 s; but who waits for it waits for the sends before it as well.
  std::vector<Program> classes;
  for (int64_t rank = 0; rank < 2; ++rank) {
    ProgramBuilder b(2, {rank});
    const int out = b.array("out", 1, Lifetime::kResident, 1'000'000);
    const int in = b.array("in", 1, Lifetime::kResident, 1'000'000);
    const int state = b.array("state", 1, Lifetime::kResident, 1);
    if (rank == 0) {
      b.send(at(out), 1, 1);
      b.receive(at(in), 1, 1);
      b.add(sim::timed_op(1, {at(in)}, {at(state)}));
    } else {
      b.send(at(in), 0, 1);
      b.add(sim::timed_op(5, {}, {at(state)}));
      b.receive(at(out), 0, 1);
    }
    classes.push_back(b.take());
  }
  const sim::Result result = sim::simulate(classes, cluster_of(2));
  EXPECT_NEAR(result.representatives[0].seconds, 5 + 4 + 1, kTolerance);
  EXPECT_NEAR(result.representatives[1].seconds, 5 + 4, kTolerance);
}

TEST(Classes, ACollectiveWaitsForTheLastOfItsClasses) {
  std::vector<Program> classes;
  for (int64_t c = 0; c < 2; ++c) {
    ProgramBuilder b(4, {c, c + 2});
    const int value = b.array("g", 1, Lifetime::kResident, 1'000'000);
    b.add(sim::timed_op(c == 0 ? 1 : 5, {}, {at(value)}));
    b.add(OpKind::kAllReduce, {at(value)}, {at(value)}, 1);
    b.add(sim::timed_op(1, {}, {program::updated(at(value))}));
    classes.push_back(b.take());
  }
  const Cluster cluster = cluster_of(4);
  const sim::Result result = sim::simulate(classes, cluster);
  const double moved =
      cost::transfer_seconds(classes[0], std::get<Op>(classes[0].body[1]), 0, cluster);
  EXPECT_GT(moved, 1);
  EXPECT_NEAR(result.seconds, 5 + moved + 1, kTolerance);
  EXPECT_NEAR(result.representatives[0].bubble_seconds, 4, kTolerance);
  EXPECT_NEAR(result.representatives[1].bubble_seconds, 0, kTolerance);
  EXPECT_NEAR(result.exposed_seconds, moved, kTolerance);
  EXPECT_EQ(result.level_bytes, sim::simulate(std::vector<Program>{[&] {
                                                Program one = classes[0];
                                                one.members.clear();
                                                return one;
                                              }()},
                                              cluster)
                                    .level_bytes);
}

TEST(Classes, EqualClassesAreAsOneClass) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<Program> one = program::random_program(seed, 4);
    if (one.size() > 1) continue;
    const Cluster cluster = cluster_of(4, 2);
    std::vector<Program> two = {one[0], one[0]};
    two[0].members = {0, 3};
    two[1].members = {1, 2};
    const sim::Result a = sim::simulate(one, cluster), b = sim::simulate(two, cluster);
    EXPECT_NEAR(a.seconds, b.seconds, kTolerance) << seed;
    EXPECT_NEAR(a.exposed_seconds, b.exposed_seconds, kTolerance) << seed;
    EXPECT_EQ(a.level_bytes, b.level_bytes) << seed;
    EXPECT_EQ(cost::price(one, cluster).level_bytes, cost::price(two, cluster).level_bytes) << seed;
  }
}

using Rows = std::map<std::pair<std::string, int64_t>, int64_t>;  // (operation, level) -> bytes

/// Walks the whole schedule of every transfer.
class Walk {
 public:
  Walk(const Program& program, const Cluster& cluster) : program_(program), cluster_(cluster) {}

  Rows run() {
    program::for_each_instance(program_, [&](const Op& op, const program::Loops& loops) {
      if (!program::is_communication(op.kind) || op.kind == OpKind::kReceive) return;
      for (const int64_t rank : program::class_ranks(program_))
        add(op, rank, program::evaluate(op.peer, loops));
    });
    return rows_;
  }

 private:
  /// What `rank` sends.
  void add(const Op& op, int64_t rank, int64_t peer) {
    const program::Group& group = program_.groups[op.group];
    if (op.kind == OpKind::kBarrier || group.size == 1) return;
    const std::vector<int64_t> members = group.members(rank);
    const collective::Request request = request_of(op, rank, peer);
    for (const collective::Transfer& transfer : collective::make_schedule(request).transfers) {
      if (transfer.from == transfer.to || members[transfer.from] != rank) continue;
      rows_[{collective::operation_name(request.operation),
             cluster_.level_between(rank, members[transfer.to])}] +=
          transfer.elements * element_bytes(op);
    }
  }

  collective::Request request_of(const Op& op, int64_t rank, int64_t peer) const {
    const program::Group& group = program_.groups[op.group];
    const program::Split split = program::transfer_split(program_, op, rank);
    collective::Request request;
    request.operation = collective::operation_of(op.kind);
    request.members = group.size;
    for (int64_t part = 0; part < split.parts; ++part) request.counts.push_back(split.count(part));
    const bool has_root = op.kind == OpKind::kBroadcast || op.kind == OpKind::kShift;
    request.root = op.kind == OpKind::kSend ? group.position(rank) : has_root ? peer : 0;
    if (op.kind == OpKind::kSend)
      request.receiver = peer;
    else
      collective::choose_form(request, split.elements() * element_bytes(op), cluster_,
                              group.members(rank));
    return request;
  }

  int64_t element_bytes(const Op& op) const {
    return dtype_bytes(program::transfer_array(program_, op).dtype);
  }

  const Program& program_;
  const Cluster& cluster_;
  Rows rows_;
};

Rows walked(const std::vector<Program>& classes, const Cluster& cluster) {
  Rows rows;
  for (const Program& program : classes)
    for (const auto& [key, bytes] : Walk(program, cluster).run()) rows[key] += bytes;
  std::erase_if(rows, [](const auto& row) { return row.second == 0; });
  return rows;
}

/// Bytes by operation and level that a simulation of one execution counts.
Rows simulated(const std::vector<Program>& classes, const Cluster& cluster) {
  Rows rows;
  const sim::Result result = sim::simulate(classes, cluster);
  for (const Traffic& row : result.traffic.rows())
    rows[{row.operation, row.level}] += row.payload_bytes;
  return rows;
}

TEST(Classes, RandomSetsEndAndSendWhatAWalkOverAllRanksFinds) {
  int64_t messages = 0, many = 0;
  for (int64_t seed = 0; seed < test::repetitions(1500, 150); ++seed) {
    const int64_t ranks = std::vector<int64_t>{1, 2, 3, 4, 6, 8}[seed % 6];
    const int64_t inner = ranks % 2 == 0 && seed % 4 != 0 ? 2 : 1;
    Cluster cluster = cluster_of(ranks, inner);
    cluster.levels[0].bytes_per_second = 1e9;  // hierarchical forms pay off
    const program::RandomSet set = program::random_set(static_cast<uint64_t>(seed), ranks);
    for (const program::StepKind& kind : set.programs.kinds) {
      const Rows rows = simulated(kind.classes, cluster);
      ASSERT_EQ(rows, walked(kind.classes, cluster)) << seed << ", " << kind.name;
      for (const auto& [key, bytes] : rows) messages += key.first == "send";
      many += kind.classes.size() > 1;
    }
  }
  EXPECT_GT(messages, test::repetitions(500, 50));
  EXPECT_GT(many, test::repetitions(900, 90));
}

TEST(Classes, MemoryIsThatOfEachClass) {
  const std::vector<Program> classes = one_forward_one_backward(4, 8, 1, 1000);
  const std::vector<program::MemoryUse> uses = program::peak_memories(classes);
  ASSERT_EQ(uses.size(), 4u);
  for (size_t c = 0; c < 4; ++c) {
    EXPECT_EQ(uses[c].total(), program::peak_memory(classes[c], static_cast<int64_t>(c)).total());
    EXPECT_LE(uses[c].total(), uses[program::largest(uses)].total());
  }
}

/// Also where stages end their steps one after another and begin the next one so.
TEST(Classes, WhatRanksDoAddsUpToTheStep) {
  for (const std::vector<std::string>& form : std::vector<std::vector<std::string>>{
           {"mesh.axes.stage=4", "pipeline.order=zero-bubble-h2", "pipeline.post_validation=true"},
           {"mesh.axes.stage=4", "pipeline.order=zero-bubble-h1"},
           {"mesh.axes.stage=2", "placement.preset=zero-topo"},
           {"placement.preset=zero3"}}) {
    std::vector<std::string> sets = {"model.preset=nano-char", "model.shape.layers=4",
                                     "cluster.preset=frontier", "train.global_batch_size=64",
                                     "train.micro_batch_size=1"};
    sets.insert(sets.end(), form.begin(), form.end());
    const auto design = strategy::make_design(parse_run("", "test.toml", sets), 16, 65);
    const sim::Result result = sim::simulate(design.steady(), design.cluster);
    EXPECT_NEAR(result.compute_seconds + result.exposed_seconds + result.bubble_seconds,
                result.seconds, 1e-9 * result.seconds)
        << testing::PrintToString(form);
  }
}

TEST(Classes, EveryRepresentativeHasItsTimeline) {
  std::vector<trace::Recorder> recorders;
  const sim::Result result =
      sim::simulate(one_forward_one_backward(3, 2, 1, 4), cluster_of(3), &recorders);
  ASSERT_EQ(recorders.size(), 3u);
  for (const trace::Recorder& recorder : recorders) {
    double computed = 0;
    for (const trace::Span& span : recorder.spans()) {
      EXPECT_LE(span.time.end, result.seconds + kTolerance);
      if (span.stream == program::kCompute) computed += span.time.end - span.time.begin;
    }
    EXPECT_NEAR(computed, 2 * 3, kTolerance);
  }
}

TEST(Cost, APipelineIsPricedByItsSlowestStage) {
  const std::vector<Program> classes = one_forward_one_backward(2, 4, 2, 1000);
  const Cluster cluster = cluster_of(4, 2);
  const cost::Cost cost = cost::price(classes, cluster);
  EXPECT_NEAR(cost.compute_seconds, 12, kTolerance);
  EXPECT_NEAR(cost.flops, 12, kTolerance);
  EXPECT_EQ(cost.level_bytes, (std::vector<int64_t>{0, 2 * 2 * 4 * 4000}));
  EXPECT_EQ(sim::simulate(classes, cluster).level_bytes, cost.level_bytes);
}

}  // namespace
}  // namespace strait
