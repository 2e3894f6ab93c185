// Placements whose spans differ by level, secondary copies and codecs (specs/sharding.md,
// invariants 2.b and 3.b): the weights of one rank where nothing is lossy, the bytes of the tables,
// and bounds where it is.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "strait/cost/cost.h"
#include "strait/sim/simulate.h"
#include "tests/strategy/sent.h"
#include "tests/train/instances.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::Bytes;
using test::distance;
using test::int4;
using test::int8;
using test::Sent;
using test::small_run;
using test::TemporaryFolder;
using test::train_small;
using test::Trained;
using test::trained;
using test::up;

const std::string kTwoLevels =
    "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 10.0, latency_microseconds = 1.0 "
    "}, "
    "{ name = \"world\", size = 0, gb_per_second = 1.0, latency_microseconds = 5.0 }]";
const std::string kThreeLevels =
    "cluster.levels=[{ name = \"pair\", size = 2, gb_per_second = 20.0, latency_microseconds = 1.0 "
    "}, "
    "{ name = \"node\", size = 2, gb_per_second = 10.0, latency_microseconds = 1.0 }, "
    "{ name = \"world\", size = 0, gb_per_second = 1.0, latency_microseconds = 5.0 }]";

std::string spans(const std::string& weights, const std::string& secondary,
                  const std::string& gradients, const std::string& optimizer) {
  return "placement.spans={ weights = \"" + weights + "\", secondary = \"" + secondary +
         "\", gradients = \"" + gradients + "\", optimizer = \"" + optimizer + "\" }";
}

std::string codecs(const std::string& weights, const std::string& secondary,
                   const std::string& gradients, const std::string& update) {
  return "placement.codecs={ weights = \"" + weights + "\", secondary = \"" + secondary +
         "\", gradients = " + gradients + ", update = \"" + update + "\" }";
}

using RunFile = Run;  // inside a test the plain name is GoogleTest's

class Levels : public ::testing::Test {
 protected:
  RunFile run_of(std::vector<std::string> sets) const { return small_run(folder_.path(), sets); }
  Trained train_on(int64_t ranks, std::vector<std::string> sets) {
    return trained(run_of(std::move(sets)), ranks,
                   folder_.path() + "/" + std::to_string(number_++));
  }
  TemporaryFolder folder_;
  int number_ = 0;
};

TEST_F(Levels, EveryLegalTripleOfSpansEqualsOneRank) {
  const std::vector<std::string> common = {"train.micro_batch_size=1", "train.clip_norm=0.3"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), common.begin(), common.end());
    return more;
  };
  const Trained serial = train_on(1, with({"placement.preset=ddp"}));
  const struct {
    int64_t ranks;
    std::vector<std::string> spans;  // weights, secondary, gradients, optimizer
    std::string levels;
  } cases[] = {
      {8, {"pair", "none", "node", "world"}, kThreeLevels},  // ZeRO-topo
      {8, {"node", "pair", "node", "world"}, kThreeLevels},
      {8, {"none", "none", "pair", "world"}, kThreeLevels},
      {8, {"none", "none", "node", "node"}, kThreeLevels},
      {8, {"pair", "none", "pair", "node"}, kThreeLevels},  // and replicas
      {8, {"pair", "none", "world", "world"}, kThreeLevels},
      {8, {"node", "none", "node", "world"}, kThreeLevels},
      {8, {"world", "node", "world", "world"}, kThreeLevels},  // hpZ
      {8, {"world", "pair", "world", "world"}, kThreeLevels},
      {6, {"node", "none", "node", "world"}, kTwoLevels},
      {6, {"world", "node", "world", "world"}, kTwoLevels},
      {4, {"node", "none", "node", "world"}, kTwoLevels},
  };
  for (const auto& c : cases) {
    const std::string text = spans(c.spans[0], c.spans[1], c.spans[2], c.spans[3]);
    const Trained got = train_on(c.ranks, with({text, c.levels}));
    for (size_t step = 0; step < serial.losses.size(); ++step)
      ASSERT_NEAR(got.losses[step], serial.losses[step], 1e-9 * serial.losses[step])
          << text << " on " << c.ranks << " step " << step;
    EXPECT_LT(distance(got, serial), 1e-9) << text << " on " << c.ranks;
  }
}

// Gradients without a codec go one way whatever the weights do, so a secondary copy changes no bit;
// what a stale copy would change.
TEST_F(Levels, SecondaryCopyAloneIsBitExact) {
  for (const char* prefetch : {"0", "1", "3"}) {
    const std::vector<std::string> base = {"train.precision=fp32", "train.micro_batch_size=1",
                                           kTwoLevels,
                                           std::string("placement.prefetch_units=") + prefetch};
    std::vector<std::string> copy = base;
    copy.push_back(spans("world", "node", "world", "world"));
    EXPECT_EQ(train_on(4, copy).hash, train_on(4, base).hash) << prefetch;
  }
}

TEST_F(Levels, LosslessCodecsOfWholeNumbersMoveWhatNoCodecMoves) {
  // fp64 through the pieces of "none" are the numbers themselves: hops and stages are those of a
  // codec.
  const std::vector<std::string> base = {kThreeLevels, spans("pair", "none", "node", "world")};
  std::vector<std::string> coded = base;
  coded.push_back(codecs("none", "none", "[\"bf16\"]", "none"));
  const Trained plain = train_on(8, base), rounded = train_on(8, coded);
  EXPECT_NE(plain.hash, rounded.hash);
  EXPECT_LT(distance(rounded, plain), 0.05);
}

TEST_F(Levels, CodecsStayNearTheLossWithoutThem) {
  const Trained plain = train_on(8, {kThreeLevels});
  const double first = plain.losses.front(), last = plain.losses.back();
  ASSERT_LT(last, first - 0.2);
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{
           {"placement.preset=zero++"},
           {"placement.preset=zero-topo"},
           {"placement.preset=zero-topo", "placement.codecs.gradients=int8/64"},
           {"placement.preset=zero++", "placement.codecs.secondary=int8/256"},
           {"placement.preset=zero-topo", "placement.spans.secondary=node",
            "placement.codecs.secondary=int8/64"},
           {"placement.preset=zero3", "placement.codecs.weights=bf16",
            "placement.codecs.gradients=bf16"},
           {"placement.preset=ddp", "placement.codecs.gradients=int8/64"},
           {"placement.preset=hsdp", "placement.codecs.gradients=int8/64"},
           {"placement.preset=mics", "placement.codecs.gradients=int8/64",
            "placement.codecs.weights=fp8e4m3"},
           {"placement.preset=zero1", "placement.codecs.update=int8/64"},
           {"placement.preset=zero2", "placement.codecs.gradients=int8/64,int4/64,int8/128"}}) {
    std::vector<std::string> all = sets;
    all.insert(all.end(), {kThreeLevels, "train.micro_batch_size=1"});
    const Trained got = train_on(8, all);
    EXPECT_NEAR(got.losses.back(), last, 0.2 * (first - last)) << sets[0] << " " << sets.back();
    EXPECT_NE(got.hash, plain.hash) << sets[0];
  }
}

Bytes bytes_of(const Ledger& ledger, int64_t steps) {
  Bytes bytes;
  for (const Traffic& row : ledger.rows()) {
    if (row.operation == "all-reduce") continue;  // the agreed scalars
    bytes[{row.operation, row.level}] += {row.payload_bytes / steps, row.metadata_bytes / steps};
    EXPECT_EQ(row.payload_bytes % steps + row.metadata_bytes % steps, 0);
  }
  std::erase_if(bytes, [](const auto& row) { return row.second == Sent{}; });
  return bytes;
}

/// Longest shard of `elements` over `span` of `world` ranks.
int64_t shard(int64_t elements, int64_t span, int64_t world) {
  return up(up(elements, world), 16) * 16 * (world / span);
}

struct Case {
  const char* preset;
  int64_t ranks, accumulation;
};

/// Sums over all ranks, on h hosts of 2: each rank sends what the others of its group lack.
Bytes closed_form(const Case& c, const ModelShape& shape) {
  Bytes bytes;
  const int64_t n = c.ranks, h = n / 2, a = c.accumulation;
  for (const UnitShape& unit : shape.units) {
    const int64_t e = unit.elements;
    const int64_t gathers = a * 2;  // tied: every unit twice per micro-step
    const Sent piece = int8(shard(e, n, n));
    if (std::string(c.preset) == "zero++") {
      // qwZ once per step, over the rail and then inside the host; hpZ for all other gathers, in
      // fp64.
      bytes[{"all-gather", 1}] += piece.times(n * (h - 1));
      bytes[{"all-gather", 0}] += piece.times(n * h);
      bytes[{"all-gather", 0}] += Sent{(gathers - 1) * h * e * 8, 0};
      // qgZ: two hops every micro-step.
      bytes[{"all-to-all", 0}] += int4(shard(e, 2, n)).times(a * n);
      bytes[{"all-to-all", 1}] += int4(shard(e, n, n)).times(a * n * (h - 1));
    } else {
      // Weights in INT8 over the host; gradients inside it every micro-step, over the rail once.
      bytes[{"all-gather", 0}] += piece.times(gathers * n * h);
      bytes[{"all-to-all", 0}] += int4(shard(e, 2, n)).times(a * n);
      bytes[{"all-to-all", 1}] += int4(shard(e, n, n)).times(n * (h - 1));
      bytes[{"all-gather", 1}] += piece.times(n * (h - 1));
    }
  }
  std::erase_if(bytes, [](const auto& row) { return row.second == Sent{}; });
  return bytes;
}

TEST_F(Levels, BytesPerLevelAreThoseOfTheTables) {
  std::map<std::pair<std::string, int64_t>, int64_t> boundary;  // by preset and ranks
  for (const Case& c : std::vector<Case>{{"zero++", 4, 1},
                                         {"zero++", 4, 3},
                                         {"zero++", 8, 1},
                                         {"zero++", 6, 2},
                                         {"zero-topo", 4, 1},
                                         {"zero-topo", 4, 3},
                                         {"zero-topo", 8, 3},
                                         {"zero-topo", 6, 1}}) {
    RunFile run =
        run_of({std::string("placement.preset=") + c.preset, kTwoLevels, "train.steps=3",
                "train.micro_batch_size=" + std::to_string(24 / c.ranks / c.accumulation)});
    run.output.run_dir = folder_.path() + "/" + std::to_string(number_++);
    const Job job = make_job(run, c.ranks);
    const train::Outcome outcome = test::outcome_of(job);
    const std::string what = std::string(c.preset) + " on " + std::to_string(c.ranks) +
                             " accumulation " + std::to_string(c.accumulation);
    const Bytes want = closed_form(c, job.design.shape);
    EXPECT_EQ(bytes_of(outcome.traffic, 3), want) << what << " runtime";
    EXPECT_EQ(bytes_of(job.simulated.traffic, 1), want) << what << " simulated";
    EXPECT_EQ(bytes_of(job.cost.traffic, 1), want) << what << " cost";
    if (std::string(c.preset) != "zero-topo") continue;
    const int64_t crossed = want.at({"all-gather", 1}).payload + want.at({"all-to-all", 1}).payload;
    const auto [seen, fresh] = boundary.try_emplace({c.preset, c.ranks}, crossed);
    EXPECT_EQ(seen->second, crossed) << "the boundary's bytes must not grow with accumulation";
  }
}

TEST_F(Levels, StateAndPeakAreWhatTheAllocatorSaw) {
  for (const char* preset : {"zero++", "zero-topo"}) {
    for (const int64_t ranks : {4, 8}) {
      RunFile run = run_of({std::string("placement.preset=") + preset, kTwoLevels, "train.steps=3",
                            "train.micro_batch_size=1"});
      run.output.run_dir = folder_.path() + "/" + std::to_string(number_++);
      const Job job = make_job(run, ranks);
      const train::Outcome outcome = test::outcome_of(job);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const double predicted = static_cast<double>(outcome.predicted_peak_bytes[rank]);
        EXPECT_NEAR(static_cast<double>(outcome.pool_peak_bytes[rank]), predicted, 0.05 * predicted)
            << preset << " rank " << rank << " of " << ranks;
      }
      int64_t secondary = 0, held = 0;
      for (const UnitShape& unit : job.design.shape.units) {
        const int64_t longest = shard(unit.elements, 2, ranks);
        secondary += 8 * std::min(unit.elements, longest);
        held += int8(shard(unit.elements, ranks, ranks)).times(ranks / 2).payload +
                int8(shard(unit.elements, ranks, ranks)).times(ranks / 2).metadata;
      }
      const program::MemoryUse& state = outcome.state_bytes[0];
      if (std::string(preset) == "zero++") {
        EXPECT_EQ(state.secondary, secondary);
      }
      if (std::string(preset) == "zero-topo") {
        EXPECT_EQ(state.weights, held);
      }
    }
  }
}

// The weights that are gathered follow from the optimizer's own, so that a resumed run is the same
// run.
TEST_F(Levels, ResumedRunsEndWithTheSameBits) {
  for (const char* preset : {"zero++", "zero-topo"}) {
    const std::vector<std::string> base = {std::string("placement.preset=") + preset, kTwoLevels,
                                           "train.precision=fp32", "checkpoint.every_steps=5",
                                           "optimizer.decay_steps=12"};
    const auto with = [&](const char* steps, const char* resume) {
      std::vector<std::string> sets = base;
      sets.insert(sets.end(), {std::string("train.steps=") + steps,
                               std::string("checkpoint.resume=") + resume});
      return run_of(sets);
    };
    const std::string whole = folder_.path() + "/whole" + preset,
                      parts = folder_.path() + "/parts" + preset;
    const std::string want = train_small(with("12", "never"), 4, whole).parameter_hash;
    train_small(with("7", "never"), 4, parts);
    EXPECT_EQ(train_small(with("12", "auto"), 4, parts).parameter_hash, want) << preset;
  }
}

// A step with a gradient that is not finite on one rank is skipped by all; the copies made in it
// still hold, and the next step gathers from them alone.
TEST_F(Levels, SecondaryCopiesOutliveASkippedStep) {
  const auto run_with = [&](std::vector<std::string> sets, bool inject, train::Outcome& outcome) {
    sets.insert(sets.end(),
                {kTwoLevels, "train.non_finite=skip", "train.steps=6", "train.precision=fp32"});
    RunFile run = run_of(sets);
    run.output.run_dir = folder_.path() + "/" + std::to_string(number_++);
    train::Hooks hooks;
    hooks.before_op = [&](int64_t rank, const runtime::Instance& instance) {
      if (!inject || rank != 1 || instance.step != 2 || !test::looks_at_a_gradient(instance) ||
          instance.reads[0].bytes == 0)
        return;
      static_cast<float*>(instance.reads[0].data)[0] = std::numeric_limits<float>::infinity();
    };
    const Job job = make_job(run, 4);
    const std::atomic<int> no_signal{0};
    train::train(job, {}, no_signal, outcome, hooks);
    return bytes_of(outcome.traffic, 1);
  };
  train::Outcome plain, copied, steady;
  run_with({"placement.preset=zero3"}, true, plain);
  const std::string hpz = spans("world", "node", "world", "world");
  const Bytes skipped = run_with({hpz}, true, copied);
  EXPECT_EQ(copied.parameter_hash, plain.parameter_hash);
  const Bytes all = run_with({hpz}, false, steady);
  EXPECT_NE(steady.parameter_hash, plain.parameter_hash);
  // Six first gathers over the boundary without a skip, five with one.
  EXPECT_EQ(skipped.at({"all-gather", 1}).payload * 6, all.at({"all-gather", 1}).payload * 5);
  train::Outcome coded;
  EXPECT_NO_THROW(run_with({"placement.preset=zero++"}, true, coded));
  for (const double loss : coded.losses) EXPECT_TRUE(std::isfinite(loss));
}

// Two bytes per parameter on every link: zero3 moves 3 A M (specs: M = 2 bytes per parameter), and
// fp32 master weights, wherever they lie, learn what one fp32 rank learns.
TEST_F(Levels, Bfloat16ComputesAndSendsTwoBytesOnFp32State) {
  const Trained plain = train_on(1, {"train.precision=fp32"});
  const double first = plain.losses.front(), last = plain.losses.back();
  for (const char* placement :
       {"ddp", "zero1", "zero2", "zero3", "hsdp", "mics", "zero++", "zero-topo"}) {
    for (const int64_t accumulation : {1, 3}) {
      RunFile run =
          run_of({"train.precision=bf16", std::string("placement.preset=") + placement, kTwoLevels,
                  "train.micro_batch_size=" + std::to_string(6 / accumulation)});
      run.output.run_dir = folder_.path() + "/" + std::to_string(number_++);
      const Job job = make_job(run, 4);
      const train::Outcome outcome = test::outcome_of(job);
      EXPECT_NEAR(outcome.losses.back(), last, 0.2 * (first - last)) << placement;
      EXPECT_EQ(bytes_of(outcome.traffic, 20), bytes_of(job.simulated.traffic, 1)) << placement;
      EXPECT_EQ(bytes_of(outcome.traffic, 20), bytes_of(job.cost.traffic, 1)) << placement;
      if (std::string(placement) != "zero3") continue;
      int64_t gathered = 0, reduced = 0;
      for (const UnitShape& unit : job.design.shape.units) {
        gathered += accumulation * 2 * 2 * unit.elements;
        reduced +=
            accumulation * 2 * (2 * shard(unit.elements, 4, 4) * 2);  // pieces are not cut short
      }
      const Bytes bytes = bytes_of(outcome.traffic, 20);
      // Two hosts: a gathered byte crosses once into each host, half of a reduction leaves each.
      EXPECT_EQ(bytes.at({"all-gather", 1}).payload, gathered);
      EXPECT_EQ(bytes.at({"all-to-all", 1}).payload, reduced);
    }
  }
}

TEST_F(Levels, Bfloat16RunsResumeWithTheSameBitsAndHashMasterWeights) {
  for (const char* placement : {"ddp", "zero1", "zero3"}) {
    const auto with = [&](const char* steps, const char* resume) {
      return run_of({std::string("placement.preset=") + placement, "train.precision=bf16",
                     "optimizer.decay_steps=12", std::string("train.steps=") + steps,
                     std::string("checkpoint.resume=") + resume});
    };
    const std::string whole = folder_.path() + "/w" + placement,
                      parts = folder_.path() + "/p" + placement;
    const std::string want = train_small(with("12", "never"), 2, whole).parameter_hash;
    train_small(with("7", "never"), 2, parts);
    EXPECT_EQ(train_small(with("12", "auto"), 2, parts).parameter_hash, want) << placement;
  }
}

TEST_F(Levels, WhatCannotWorkIsRefusedByName) {
  const auto refused = [&](std::vector<std::string> sets, int64_t ranks, const std::string& key,
                           const std::string& part) {
    sets.push_back(kTwoLevels);
    try {
      strategy::make_design(run_of(sets), ranks, 40);
      ADD_FAILURE() << "accepted " << sets[0];
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().key, key) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused({"placement.preset=zero++"}, 2, "placement.preset", "zero3");
  refused({spans("4", "none", "2", "4")}, 4, "placement.spans.weights", "nearest: 2");
  refused({spans("4", "none", "4", "6")}, 12, "placement.spans.gradients", "nearest: 3");
  refused({spans("none", "node", "none", "world")}, 4, "placement.spans.secondary", "none");
  refused({"placement.codecs.weights=int8", "placement.preset=zero1"}, 4,
          "placement.codecs.weights", "none");
  refused({"placement.codecs.update=int8"}, 4, "placement.codecs.update", "none");
  refused({"placement.codecs.gradients=int4,int8,int4"}, 4, "placement.codecs.gradients", "2");
  refused({"placement.codecs.gradients=int4/0"}, 4, "placement.codecs.gradients", "int4");
  refused({"placement.codecs.gradients=int5"}, 4, "placement.codecs.gradients", "int");
  refused({"placement.codecs.secondary=int8"}, 4, "placement.codecs.secondary", "none");
  refused({"placement.codecs.weights=int8+ef"}, 4, "placement.codecs.weights", "int8/2048");
}

/// The default, written: what blocks compute on is sent in bf16 all the same.
TEST_F(Levels, NoCodecInSixteenBitsIsWhatBlocksComputeOn) {
  for (const auto& [placement, codec] : {std::pair{"zero3", "placement.codecs.weights=none"},
                                         {"ddp", "placement.codecs.update=none"}}) {
    std::vector<std::string> sets = {"train.precision=bf16", kTwoLevels,
                                     std::string("placement.preset=") + placement};
    const std::string usual =
        program::print(strategy::make_design(run_of(sets), 4, 40).steady()[0]);
    sets.push_back(codec);
    EXPECT_EQ(program::print(strategy::make_design(run_of(sets), 4, 40).steady()[0]), usual)
        << codec;
  }
}

}  // namespace
}  // namespace strait
