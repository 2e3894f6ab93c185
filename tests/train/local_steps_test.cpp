// Replicas of the model that agree rarely, in real training: the invariants of DiLoCo, Streaming
// DiLoCo and CO2 (C1 to C7 and D1 to D12 of what tests call them), any placement inside a
// replica, checkpoints in the middle of a round.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "strait/base/errors.h"
#include "strait/config/parse.h"
#include "strait/config/print.h"
#include "strait/verify/verify.h"
#include "tests/tensor/devices.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::distance;
using test::MasterWeights;
using test::small_run;
using test::Trained;
using Sets = std::vector<std::string>;

Sets operator+(Sets a, const Sets& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Sets policy(const std::string& name, int64_t period, const Sets& more = {}) {
  return Sets{"sync.policy=" + name, "sync.rounds.period_steps=" + std::to_string(period)} + more;
}
Sets streaming(int64_t period, int64_t fragments, int64_t delay) {
  return policy("streaming-diloco", period,
                {"sync.rounds.fragments=" + std::to_string(fragments),
                 "sync.rounds.delay_steps=" + std::to_string(delay), "sync.outer.codec=none"});
}

/// Policies that differ in what they do.
const std::vector<Sets>& policies() {
  static const std::vector<Sets> all = {
      policy("post-local-sgd", 4),
      policy("slowmo", 5),
      policy("diloco", 5),
      policy("diloco", 6, {"sync.rounds.delay_steps=2"}),
      streaming(6, 3, 1),
      policy("streaming-diloco", 6, {"sync.outer.codec=int4/128"}),
      policy("co2", 3),
      policy("co2", 3, {"sync.outer.penalty=gap-aware:0.01"}),
      policy("co2", 4, {"sync.rounds.eager=true", "sync.outer.penalty=constant:2.0"}),
      policy("co2", 4, {"sync.outer.penalty=lr-ratio:3"}),
  };
  return all;
}

class LocalSteps : public test::MeshRuns {
 protected:
  strait::Run run_of(const Sets& sets) { return small_run(folder_.path(), sets); }
  Trained train(const Sets& sets, int64_t ranks) {
    return test::trained(run_of(sets), ranks, next_folder());
  }
};

TEST_F(LocalSteps, OneReplicaThatAveragesIsPlainTraining) {
  const Trained plain = train({}, 1);
  expect_equal(train(policy("post-local-sgd", 4), 1), plain);
  expect_equal(train(policy("post-local-sgd", 3, {"sync.replica=2"}), 2), plain);
}

/// SGD is linear, so the mean of replicas after every step is a step on the mean gradient.
TEST_F(LocalSteps, AveragingEveryStepIsDataParallel) {
  const Sets sgd = {"optimizer.kind=sgd", "optimizer.betas=[0.5, 0.99]", "train.clip_norm=0",
                    "optimizer.learning_rate=0.05"};
  const Trained want = train(sgd + Sets{"placement.preset=ddp"}, 4);
  const Trained got = train(sgd + policy("post-local-sgd", 1), 4);
  EXPECT_LT(distance(got, want), 1e-9);
  EXPECT_NEAR(got.validation, want.validation, 1e-9);
}

TEST_F(LocalSteps, StreamingInOneFragmentAtOnceIsDiLoCo) {
  const Sets outer = {"sync.outer.learning_rate=0.6", "sync.outer.momentum=0.8",
                      "sync.rounds.mixing=0"};
  const Trained want = train(policy("diloco", 5, outer), 2);
  EXPECT_EQ(train(streaming(5, 1, 0) + outer, 2).hash, want.hash);
}

TEST_F(LocalSteps, LocalWeightsThatStayNeverNoticeTheOthers) {
  const Trained alone = train(policy("diloco", 1000), 2);
  const Trained mixed = train(streaming(6, 3, 1) + Sets{"sync.rounds.mixing=1"}, 2);
  EXPECT_EQ(mixed.losses, alone.losses) << "of the first replica";
  EXPECT_NE(mixed.hash, alone.hash) << "the outer weights move";
}

/// All weights of a state of one replica.
MasterWeights weights_of(const std::string& path, const std::string& state, int64_t replica) {
  MasterWeights units;
  const checkpoint::CheckpointReader reader(path);
  for (const checkpoint::UnitRecord& unit : reader.manifest().units) {
    std::vector<double>& values = units[unit.name];
    values.resize(static_cast<size_t>(unit.elements));
    checkpoint::StateRange range{unit.name, state, 0, unit.elements, Dtype::kFloat64};
    range.replica = replica;
    reader.load(range, std::as_writable_bytes(std::span(values)));
  }
  return units;
}

/// The replicas' own weights, taken from a run without borders, say what a border must make of
/// them.
TEST_F(LocalSteps, ABorderTakesTheMeanOfWhatReplicasCameTo) {
  const Sets ten = {"optimizer.decay_steps=20", "train.clip_norm=0.3", "model.shape.dropout=0.1"};
  const std::string apart = next_folder();
  test::train_small(
      run_of(ten + policy("diloco", 1000) +
             Sets{"train.steps=20", "checkpoint.every_steps=10", "checkpoint.keep=5"}),
      4, apart);
  const std::string at_ten = apart + "/checkpoints/step-00000010";
  const MasterWeights start = weights_of(at_ten, "master", 0);
  std::vector<MasterWeights> local;
  for (int64_t replica = 0; replica < 4; ++replica)
    local.push_back(weights_of(at_ten, "local", replica));
  EXPECT_GT(distance(local[0].begin()->second, local[1].begin()->second), 1e-3);
  const Trained got = train(ten + policy("diloco", 10) + Sets{"train.steps=10"}, 4);
  for (const auto& [unit, values] : got.units)
    for (size_t i = 0; i < values.size(); ++i) {
      double mean = 0;
      for (const MasterWeights& replica : local) mean += replica.at(unit)[i] / 4;
      const double difference = start.at(unit)[i] - mean;
      ASSERT_NEAR(values[i], start.at(unit)[i] - 0.7 * (difference + 0.9 * difference), 1e-12);
    }
}

struct Inside {
  const char* name;
  int64_t ranks;  // of two replicas
  Sets sets;
};

TEST_F(LocalSteps, AReplicaMayHoldAnyPlacement) {
  const std::vector<Inside> inside = {
      {"zero3", 4, {"placement.preset=zero3"}},
      {"zero1", 4, {"placement.preset=zero1"}},
      {"zero2", 8, {"placement.preset=zero2"}},
      {"ddp", 4, {"placement.preset=ddp"}},
      {"hsdp",
       8,
       {"placement.preset=hsdp", "placement.spans.weights=2", "placement.spans.gradients=2",
        "placement.spans.optimizer=2"}},
  };
  const Sets model = {"train.clip_norm=0.3", "model.shape.dropout=0.1", "model.shape.layers=4",
                      "train.micro_batch_size=3"};
  for (const Sets& policy : {policies()[2], policies()[4], policies()[6], policies()[8]}) {
    const Trained want = train(model + policy + Sets{"train.micro_batch_size=12"}, 2);
    for (const Inside& one : inside) {
      SCOPED_TRACE(policy.front() + ", " + one.name);
      const Trained got =
          train(model + policy + one.sets + Sets{"sync.replica=" + std::to_string(one.ranks / 2)},
                one.ranks);
      EXPECT_LT(distance(got, want), 1e-9);
      for (size_t step = 0; step < want.losses.size(); ++step)
        ASSERT_NEAR(got.losses[step], want.losses[step], 1e-9 * want.losses[step]) << step;
      // Eager replicas have outer weights of their own, and evaluate other windows with them.
      if (std::ranges::count(policy, "sync.rounds.eager=true") == 0) {
        EXPECT_NEAR(got.validation, want.validation, 1e-9 * want.validation);
      }
    }
  }
}

TEST_F(LocalSteps, EagerReplicasEndAsOneModel) {
  const std::string run_dir = next_folder();
  test::train_small(run_of(policy("diloco", 3,
                                  {"sync.rounds.delay_steps=3", "sync.rounds.eager=true",
                                   "sync.replica=1", "train.steps=12"})),
                    2, run_dir);
  for (const char* state : {"master", "outer_momentum"})
    EXPECT_EQ(weights_of(run_dir, state, 0), weights_of(run_dir, state, 1)) << state;
}

/// The outer weights come and go; bits that blocks compute on, copies and shards are as before.
TEST_F(LocalSteps, EvaluationsLeaveNoTrace) {
  const Sets levels = {
      "cluster.levels=[{ name = \"pair\", size = 2, gb_per_second = 4.0, "
      "latency_microseconds = 1.0 }, { name = \"world\", size = 0, "
      "gb_per_second = 0.4, latency_microseconds = 5.0 }]"};
  for (const char* precision : {"fp32", "bf16"})
    for (const char* placement : {"ddp", "zero1", "zero3", "zero++", "zero-topo"}) {
      SCOPED_TRACE(std::string(precision) + " " + placement);
      const Sets sets = levels + policies()[3] +
                        Sets{std::string("train.precision=") + precision, "sync.replica=4",
                             std::string("placement.preset=") + placement, "train.steps=13"};
      const train::Outcome never = test::train_small(run_of(sets), 8, next_folder());
      const train::Outcome often =
          test::train_small(run_of(sets + Sets{"evaluation.every_steps=2"}), 8, next_folder());
      EXPECT_EQ(often.parameter_hash, never.parameter_hash);
      EXPECT_EQ(often.losses, never.losses);
      EXPECT_EQ(often.validation.size(), 7u);
    }
}

/// From a checkpoint after every step, wherever in a round that is.
TEST_F(LocalSteps, ARunGoesOnInTheMiddleOfARound) {
  for (const Sets& policy : policies())
    for (const char* placement : {"zero3", "zero1"}) {
      const Sets sets =
          policy + Sets{std::string("placement.preset=") + placement, "sync.replica=2",
                        "checkpoint.every_steps=1", "checkpoint.keep=100", "train.steps=13"};
      const std::string whole = next_folder();
      const Trained want = test::trained(run_of(sets), 4, whole);
      for (const int64_t step : {4, 7, 9, 12}) {
        SCOPED_TRACE(policy.front() + " " + placement + ", from step " + std::to_string(step));
        char name[32];
        std::snprintf(name, sizeof(name), "%08d", static_cast<int>(step));
        const Sets from = {"checkpoint.resume=" + whole + "/checkpoints/step-" + name};
        EXPECT_EQ(train(sets + from, 4).hash, want.hash);
        if (step != 7) continue;
        for (const auto& [ranks, span] : {std::pair{8, 4}, {2, 1}}) {
          const Trained other = train(
              sets + from + Sets{"sync.replica=" + (span == 1 ? "none" : std::to_string(span))},
              ranks);
          // A codec's blocks begin elsewhere.
          const bool coded = std::ranges::count(policy, "sync.outer.codec=int4/128") > 0;
          EXPECT_LT(distance(other, want), coded ? 0.1 : 1e-9) << ranks << " ranks";
        }
      }
    }
}

/// At its end a run takes up what is under way. A longer one, which goes on from there, must not
/// take it up again: at a rate of 0 and without momentum nothing moves any more.
TEST_F(LocalSteps, AFinishedRunTakesALateResultUpOnce) {
  const Sets still = {"sync.outer.momentum=0", "optimizer.weight_decay=0", "sync.replica=1"};
  for (const Sets& late :
       {policy("co2", 6, {"sync.outer.clip=0", "sync.outer.penalty=constant:1.0"}),
        policy("diloco", 6, {"sync.rounds.delay_steps=2", "sync.rounds.mixing=0"}),
        policy("co2", 4, {"sync.rounds.eager=true"})}) {
    SCOPED_TRACE(late.front() + ", " + late.back());
    const std::string run_dir = next_folder();
    const Trained ended = test::trained(run_of(late + still + Sets{"train.steps=13"}), 2, run_dir);
    const Trained longer = test::trained(
        run_of(late + still +
               Sets{"train.steps=30", "checkpoint.resume=auto", "optimizer.learning_rate=0",
                    "optimizer.minimum_learning_rate=0", "optimizer.warmup_steps=0"}),
        2, run_dir);
    EXPECT_LT(distance(longer, ended), 1e-12);
  }
}

/// Nor is the landing of what a run has already taken up a step of the outer optimizer: a border
/// without a result leaves outer weights and momentum alone.
TEST_F(LocalSteps, AFinishedRunGoesOnWithoutAPhantomStep) {
  struct Extended {
    Sets policy;
    int64_t end, landing;  // steps
  };
  for (const Extended& one : {Extended{policy("co2", 4), 12, 16},
                              Extended{policy("diloco", 8, {"sync.rounds.delay_steps=3"}), 16, 19},
                              Extended{streaming(9, 3, 2), 18, 20}}) {
    SCOPED_TRACE(one.policy.front());
    const auto steps = [](int64_t count) { return "train.steps=" + std::to_string(count); };
    const Sets sets = one.policy + Sets{"sync.replica=1", "checkpoint.every_steps=1",
                                        "checkpoint.keep=100", "optimizer.decay_steps=30"};
    const std::string run_dir = next_folder(), again = next_folder();
    const auto at = [](const std::string& run, int64_t step) {
      return fmt::format("{}/checkpoints/step-{:08d}", run, step);
    };
    test::train_small(run_of(sets + Sets{steps(one.end)}), 2, run_dir);
    const Sets longer = sets + Sets{steps(one.landing + 8)};
    const auto whole = test::train_small(
        run_of(longer + Sets{"checkpoint.resume=" + at(run_dir, one.end)}), 2, again);
    for (const char* state : {"master", "outer_momentum"}) {
      const MasterWeights before = weights_of(at(run_dir, one.end), state, 0);
      const MasterWeights behind = weights_of(at(again, one.landing), state, 0);
      EXPECT_EQ(distance(behind.at("embedding"), before.at("embedding")), 0) << state;
    }
    // From a checkpoint between the end and the landing, too.
    const auto parted = test::train_small(
        run_of(longer + Sets{"checkpoint.resume=" + at(again, one.landing - 1)}), 2, next_folder());
    EXPECT_EQ(parted.parameter_hash, whole.parameter_hash);
  }
}

/// Bytes by operation, summed over all ranks.
using Bytes = std::map<std::string, int64_t>;

Bytes bytes_of(const Ledger& ledger) {
  Bytes bytes;
  for (const Traffic& row : ledger.rows())
    if (row.payload_bytes + row.metadata_bytes > 0)
      bytes[row.operation] += row.payload_bytes + row.metadata_bytes;
  return bytes;
}

/// What replicas of one rank send at the borders of the fragments from `first` on: two scalars
/// each, and the differences of its units, summed, or in pieces to all others.
Bytes sent_at_borders(const strategy::Design& design, int64_t first) {
  const strategy::Policy& policy = design.policy;
  const int64_t r = policy.replicas;
  Bytes bytes;
  bytes["all-reduce"] = (policy.fragments - first) * 2 * (r - 1) * 2 * 8;
  for (const UnitShape& unit : design.shape.units)
    if (policy.fragment_of(unit.name, design.shape.options.layers) < first)
      continue;
    else if (policy.codec.kind == codec::CodecKind::kNone)
      bytes["all-reduce"] += 2 * (r - 1) * unit.elements * 8;
    else
      bytes["all-gather"] += r * (r - 1) * codec::encoded_bytes(policy.codec, unit.elements);
  return bytes;
}

TEST_F(LocalSteps, BytesAreClosedFormsInAllReaders) {
  constexpr int64_t kRounds = 3, kPeriod = 6;
  for (const Sets& policy :
       {policy("post-local-sgd", kPeriod), streaming(kPeriod, 3, 1),
        policy("diloco", kPeriod, {"sync.outer.codec=int4/128", "sync.rounds.delay_steps=2"}),
        policy("co2", kPeriod)})
    for (const int64_t ranks : {2, 3, 4}) {
      SCOPED_TRACE(policy.front() + " on " + std::to_string(ranks));
      strait::Run run = run_of(policy + Sets{"train.steps=" + std::to_string(kRounds * kPeriod)});
      run.output.run_dir = next_folder();
      const Job job = make_job(run, ranks);
      const train::Outcome outcome = test::outcome_of(job);
      // Behind the last step all have a border: fragment 0 because it is due, the others because it
      // is the last.
      Bytes round = sent_at_borders(job.design, 0), last = sent_at_borders(job.design, 1);
      Bytes whole_run;
      for (const auto& [operation, bytes] : round)
        whole_run[operation] = kRounds * bytes + last[operation];
      EXPECT_EQ(bytes_of(outcome.traffic), whole_run);
      for (const Ledger* ledger : {&job.simulated.traffic, &job.cost.traffic})
        for (const auto& [operation, bytes] : bytes_of(*ledger))
          EXPECT_NEAR(static_cast<double>(bytes * kPeriod), static_cast<double>(round[operation]),
                      kPeriod)
              << operation << " of the mean step, which is rounded";
    }
}

/// Where state is split, the end of a run gathers weights anew, which is no step's.
TEST_F(LocalSteps, TheEndCountsBetweenSteps) {
  for (const Sets& policy : {policy("co2", 4), policy("co2", 4, {"sync.rounds.eager=true"})}) {
    strait::Run run = run_of(policy + Sets{"placement.preset=zero1", "sync.replica=2",
                                           "train.steps=16", "evaluation.every_steps=0"});
    run.output.run_dir = next_folder();
    const Job job = make_job(run, 4);
    const train::Outcome outcome = test::outcome_of(job);
    EXPECT_EQ(outcome.traffic.bytes(), 16 * job.simulated.traffic.bytes()) << policy.back();
    EXPECT_GT(outcome.between_steps.bytes(), 0);
  }
}

TEST_F(LocalSteps, MemoryIsWhatTheAllocatorSaw) {
  for (const Sets& policy : policies()) {
    const train::Outcome outcome = test::train_small(
        run_of(policy + Sets{"sync.replica=2", "train.steps=14"}), 4, next_folder());
    for (size_t rank = 0; rank < outcome.pool_peak_bytes.size(); ++rank)
      EXPECT_NEAR(static_cast<double>(outcome.predicted_peak_bytes[rank]),
                  static_cast<double>(outcome.pool_peak_bytes[rank]),
                  0.05 * static_cast<double>(outcome.pool_peak_bytes[rank]))
          << policy.front() << ", rank " << rank;
  }
}

TEST_F(LocalSteps, ARoundIsALegalProgram) {
  for (const Sets& policy : policies()) {
    const strategy::Design design = strategy::make_design(
        run_of(policy + Sets{"placement.preset=zero1", "sync.replica=2"}), 8, 20);
    EXPECT_EQ(design.round.steps, design.policy.period);
    for (const program::Problem& problem : program::verify(design.round.classes))
      ADD_FAILURE() << policy.front() << ": " << problem.message;
  }
}

/// Memory that faults when the host touches it: tensor/host_device.h.
TEST_F(LocalSteps, TrainOnADevice) {
  for (const Sets& policy : policies()) {
    SCOPED_TRACE(policy.front());
    const Sets sets = policy + Sets{"placement.preset=zero1", "sync.replica=2", "train.steps=13"};
    const Trained want = train(sets, 4);
    strait::Run run = run_of(sets);
    run.output.run_dir = next_folder();
    Job job = make_job(run, 4);
    job.device = tensor::make_test_device("shadow");
    const train::Outcome outcome = test::outcome_of(job);
    const bool coded = std::ranges::count(policy, "sync.outer.codec=int4/128") > 0;
    const Trained got{outcome.losses, "", test::master_weights(run.output.run_dir, run)};
    EXPECT_LT(distance(got, want), coded ? 1e-3 : 1e-9);
  }
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing was refused";
}

/// What a run folder keeps is a run file again, of the same run.
TEST_F(LocalSteps, TheResolvedRunFileSaysTheSame) {
  std::vector<Sets> all = policies();
  all.push_back({});
  for (const Sets& policy : all) {
    const strait::Run run = run_of(policy);
    const strait::Run again = parse_run(print_run(run), "again.toml", {});
    const strategy::Design want = strategy::make_design(run, 4, 20);
    EXPECT_EQ(strategy::make_design(again, 4, 20).policy.describe(), want.policy.describe());
  }
}

TEST_F(LocalSteps, TheNumberOfReplicasStays) {
  const Sets sets = policy("diloco", 5, {"train.steps=7"});
  const std::string two = next_folder();
  test::train_small(run_of(sets), 2, two);
  const std::string text = refusal([&] {
    train(sets + Sets{"train.steps=9", "checkpoint.resume=" + two}, 3);
  });
  EXPECT_NE(text.find("2 replicas of any size, or a new run"), std::string::npos) << text;
  const std::string other = refusal([&] {
    train({"train.steps=9", "checkpoint.resume=" + two}, 2);
  });
  EXPECT_NE(other.find("sync.policy"), std::string::npos) << other;
}

TEST_F(LocalSteps, WhatExcludesEachOtherIsRefusedWithTheNearest) {
  struct Bad {
    Sets sets;
    const char* key;
    const char* nearest;
  };
  const std::vector<Bad> all = {
      {{"sync.rounds.period_steps=5"}, "sync.rounds.period_steps", "remove it"},
      {{"sync.outer.momentum=0.8"}, "sync.outer.momentum", "remove it"},
      {policy("diloco", 5, {"sync.replica=3"}), "sync.replica", "4"},
      {policy("diloco", 5, {"sync.replica=world"}), "sync.replica", "none"},
      {policy("diloco", 5, {"sync.replica=nodes"}), "sync.replica", "none"},
      {policy("diloco", 5, {"sync.rounds.fragments=2"}), "sync.rounds.fragments", "is 1"},
      {policy("streaming-diloco", 9, {"sync.rounds.fragments=4"}), "sync.rounds.fragments", "is 3"},
      {policy("streaming-diloco", 9, {"sync.rounds.fragments=3", "sync.rounds.delay_steps=3"}),
       "sync.rounds.delay_steps", "is 2"},
      {policy("diloco", 5, {"sync.rounds.delay_steps=6"}), "sync.rounds.delay_steps", "is 4"},
      {policy("co2", 5, {"sync.rounds.delay_steps=2"}), "sync.rounds.delay_steps", "is 5"},
      {policy("co2", 5, {"sync.rounds.mixing=0.5"}), "sync.rounds.mixing", "is 0"},
      {policy("diloco", 5, {"sync.rounds.eager=true"}), "sync.rounds.eager", "delay_steps = 5"},
      {policy("diloco", 5, {"sync.outer.penalty=constant:2"}), "sync.outer.penalty",
       "constant:1.0"},
      {policy("co2", 5, {"sync.outer.penalty=some"}), "sync.outer.penalty", "constant:1.0"},
      {policy("co2", 5, {"sync.outer.penalty=gap-aware:0"}), "sync.outer.penalty", "constant:1.0"},
      {policy("co2", 5, {"sync.outer.penalty=lr-ratio:1"}), "sync.outer.penalty", "constant:1.0"},
      {policy("diloco", 5, {"sync.outer.penalty=lr-ratio:2"}), "sync.outer.penalty",
       "constant:1.0"},
      {policy("diloco", 5, {"sync.outer.penalty=gap-aware:1"}), "sync.outer.penalty",
       "constant:1.0"},
      {policy("co2", 5, {"sync.outer.penalty=gap-aware:1", "sync.outer.kind=nesterov"}),
       "sync.outer.penalty", "constant:1.0"},
      {policy("co2", 5, {"sync.outer.codec=int8/64+ef"}), "sync.outer.codec", "int8/64"},
      {policy("co2", 5, {"sync.outer.codec=fp16"}), "sync.outer.codec", "bf16"},
      {policy("co2", 5, {"train.non_finite=skip"}), "train.non_finite", "stop"},
      {policy("co2", 5,
              {"data.document_separator=.\n", "data.tokenizer=byte", "model.shape.context=1"}),
       "sync.policy", "every-step"},
      {policy("dilico", 5), "sync.policy", "diloco"},
  };
  for (const Bad& bad : all) {
    const std::string text = refusal([&] { train(bad.sets, 4); });
    EXPECT_NE(text.find(bad.key), std::string::npos) << bad.sets.back() << ": " << text;
    EXPECT_NE(text.find(bad.nearest), std::string::npos) << bad.sets.back() << ": " << text;
  }
}

}  // namespace
}  // namespace strait
