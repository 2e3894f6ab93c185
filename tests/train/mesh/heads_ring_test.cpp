// Heads exchanged among neighbours and keys on rings across them (sequence.engine "heads_ring"):
// trains as one rank does, with the bytes of the closed forms; with one neighbour it is the ring,
// with all of them it is heads (specs: sequences 9d, Z3, Z5, Z10).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "strait/cost/cost.h"
#include "strait/program/program.h"
#include "strait/sequence/traffic.h"
#include "strait/sim/simulate.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::Bytes;
using test::small_run;
using test::Trained;
using testing::HasSubstr;
using Sets = std::vector<std::string>;

constexpr int64_t kGlobalBatch = 8, kContext = 32, kLayers = 2, kSteps = 20;

/// `heads` neighbours times `rings` groups share every sequence.
struct Case {
  int64_t heads, rings;
  int64_t x = 1, y = 1, data = 1, stages = 1;
  Sets what = {};  // decides the result
  Sets how = {};   // does not
  int64_t sharers() const { return heads * rings; }
  int64_t ranks() const { return sharers() * x * y * data * stages; }
  std::string text() const {
    std::string text =
        fmt::format("{} x {}, x {}, y {}, data {}, stages {}", heads, rings, x, y, data, stages);
    for (const auto* sets : {&what, &how})
      for (const std::string& set : *sets) text += ", " + set;
    return text;
  }
};

const Sets kLlama = {"model.family=llama", "model.shape.kv_heads=4", "model.shape.tied_head=false"};
const Sets kNormed = {"model.family=qwen3", "model.shape.bias=false", "model.shape.kv_heads=4"};
const Sets kWindows = {"model.family=mistral", "model.shape.window=9", "model.shape.bias=false"};
const Sets kDropout = {"model.shape.dropout=0.1"};
const Sets kSeparated = {"data.document_separator=.\n"};
const Sets kDocuments = {"data.document_separator=.\n", "train.global_batch_tokens=256",
                         "train.global_batch_size=12", "model.family=llama",
                         "model.shape.kv_heads=4"};

class HeadsInRings : public test::MeshRuns {
 protected:
  strait::Run run_of(const Case& c, const Sets& more = {}) {
    Sets sets = {"mesh.axes.x=" + std::to_string(c.x),
                 "mesh.axes.y=" + std::to_string(c.y),
                 "mesh.axes.sequence=" + std::to_string(c.sharers()),
                 "mesh.axes.stage=" + std::to_string(c.stages),
                 "train.steps=" + std::to_string(kSteps),
                 "placement.preset=ddp",
                 "train.clip_norm=0.3",
                 "optimizer.decay_steps=20",
                 "runtime.threads_per_rank=1",
                 "model.shape.layers=" + std::to_string(kLayers),
                 "model.shape.heads=8",
                 "model.shape.kv_heads=8",
                 "model.shape.width=32",
                 "model.shape.ffn_width=24",
                 "model.shape.vocabulary=24",
                 "model.shape.context=" + std::to_string(kContext)};
    if (c.what != kDocuments)
      sets.insert(sets.end(),
                  {fmt::format("train.global_batch_size={}", kGlobalBatch),
                   fmt::format("train.micro_batch_size={}", kGlobalBatch / c.data / 2)});
    if (c.sharers() > 1)
      sets.insert(sets.end(),
                  {"sequence.engine=heads_ring", "sequence.head_ranks=" + std::to_string(c.heads)});
    for (const Sets* other : {&c.what, &c.how, &more})
      sets.insert(sets.end(), other->begin(), other->end());
    return small_run(folder_.path(), sets);
  }
  Trained train(const Case& c, const Sets& more = {}) {
    return test::trained(run_of(c, more), c.ranks(), next_folder());
  }
  void expect_one_rank(const std::vector<Case>& cases) {
    std::map<Sets, Trained> serial;
    for (const Case& c : cases) {
      SCOPED_TRACE(c.text());
      const auto [found, fresh] = serial.try_emplace(c.what);
      if (fresh) found->second = train({.heads = 1, .rings = 1, .what = c.what});
      expect_equal(train(c), found->second);
    }
  }
  std::string refusal(const Case& c, const Sets& sets) {
    return refusal_of([&] { make_job(run_of(c, sets), c.ranks()); });
  }
};

TEST_F(HeadsInRings, TrainAsOneRankDoes) {
  std::vector<Case> cases;
  for (const Sets& what : {Sets{}, kLlama, kNormed, kWindows, kDropout, kSeparated, kDocuments})
    for (const auto& [heads, rings] : {std::pair{2, 2}, {2, 4}, {4, 2}})
      cases.push_back({.heads = heads, .rings = rings, .what = what});
  expect_one_rank(cases);
}

TEST_F(HeadsInRings, TrainAsOneRankDoesBesideOtherAxes) {
  const Sets sharded = {"placement.preset=zero3", "train.recompute=block"};
  expect_one_rank({{.heads = 2, .rings = 2, .data = 2, .what = kLlama, .how = sharded},
                   {.heads = 2, .rings = 2, .data = 2, .what = kDocuments, .how = sharded},
                   {.heads = 2, .rings = 2, .x = 2, .what = kLlama},
                   {.heads = 2, .rings = 2, .x = 2, .what = kDropout},
                   {.heads = 2, .rings = 2, .x = 2, .how = {"tensor.sequence_parallel=true"}},
                   {.heads = 2, .rings = 2, .x = 2, .how = {"tensor.tiles=on"}},
                   {.heads = 2, .rings = 2, .y = 2, .what = kLlama},
                   {.heads = 2, .rings = 2, .y = 2, .what = kNormed, .how = sharded},
                   {.heads = 2, .rings = 2, .stages = 2, .what = kLlama},
                   {.heads = 2,
                    .rings = 2,
                    .stages = 2,
                    .what = kSeparated,
                    .how = {"pipeline.order=zero-bubble-h1"}},
                   {.heads = 4, .rings = 2, .what = kWindows, .how = {"train.recompute=every:2"}}});
}

TEST_F(HeadsInRings, Bfloat16TrainsAlongsideOneRank) {
  const Sets bf16 = {"train.precision=bf16", "train.steps=6"};
  const Trained want = train({.heads = 1, .rings = 1, .what = kLlama}, bf16);
  const Trained got = train({.heads = 2, .rings = 2, .what = kLlama}, bf16);
  for (size_t step = 0; step < want.losses.size(); ++step)
    EXPECT_NEAR(got.losses[step], want.losses[step], 0x1p-8 * want.losses[step]) << step;
  EXPECT_EQ(train({.heads = 2, .rings = 2, .what = kLlama}, bf16).losses, got.losses);
}

/// All-to-alls of two neighbours stay in their pair, of four a third; rings cross pairs.
TEST_F(HeadsInRings, BytesAreClosedFormsInAllReaders) {
  for (const auto& [heads, rings] : {std::pair{2, 2}, {2, 4}, {4, 2}})
    for (const bool again : {false, true}) {
      const Case c{.heads = heads, .rings = rings, .what = kLlama};
      SCOPED_TRACE(c.text() + (again ? ", recomputing" : ""));
      strait::Run run = run_of(c, {"train.steps=3", test::kPairs,
                                   std::string("train.recompute=") + (again ? "block" : "none")});
      run.output.run_dir = next_folder();
      const Job job = make_job(run, c.ranks());
      const train::Outcome outcome = test::outcome_of(job);
      const ShapeOptions& options = job.design.shape.options;
      const std::vector<int64_t> tokens(static_cast<size_t>(c.sharers()),
                                        kGlobalBatch * kContext / c.sharers());
      const sequence::HeadsRingTraffic traffic = sequence::heads_ring_traffic(
          tokens, heads, {options.heads, options.kv_heads, options.head_elements()}, {8, 8});
      const auto of_step = [&](const sequence::Traffic& one) {
        return kLayers * ((again ? 2 : 1) * one.forward + one.backward);
      };
      const int64_t exchanged = of_step(traffic.exchanged + traffic.deltas);
      Bytes want = {{{"shift", 1}, of_step(traffic.ring)},
                    {{"all-to-all", 0}, heads == 2 ? exchanged : exchanged / 3}};
      if (heads > 2) want[{"all-to-all", 1}] = exchanged / 3 * 2;
      for (const UnitShape& unit : job.design.shape.units)
        test::add_exchange(want, "all-reduce", 2 * unit.elements * 8, {c.sharers(), 1});
      test::add_exchange(want, "all-reduce", 2 * test::kAgreedBytes, {c.sharers(), 1}, true);
      test::expect_bytes(job, outcome.traffic, 3, want);
    }
}

TEST_F(HeadsInRings, MemoryIsWhatTheAllocatorSaw) {
  for (const Case& c :
       {Case{.heads = 2, .rings = 2}, Case{.heads = 4, .rings = 2, .what = kLlama},
        Case{.heads = 2, .rings = 2, .stages = 2, .how = {"train.recompute=block"}}})
    for (const char* precision : {"fp64", "bf16"}) {
      const Sets sets = {std::string("train.precision=") + precision, "train.steps=3"};
      SCOPED_TRACE(c.text() + ", " + precision);
      test::expect_predicted_memory(test::train_small(run_of(c, sets), c.ranks(), next_folder()));
    }
}

/// The same transfers and kernels, not others that do the same.
TEST_F(HeadsInRings, OneNeighbourIsARingAndAllAreHeads) {
  const auto program = [&](const Case& c, const Sets& sets) {
    const Job job = make_job(run_of(c, sets), c.ranks());
    return program::print(job.design.steady().front());
  };
  const Sets none = {"sequence.head_ranks=0"};
  const auto other = [&](const char* engine) {
    return program({.heads = 2, .rings = 2}, {std::string("sequence.engine=") + engine, none[0]});
  };
  EXPECT_EQ(program({.heads = 1, .rings = 4}, {}), other("ring"));
  EXPECT_EQ(program({.heads = 4, .rings = 1}, {}), other("heads"));
  EXPECT_NE(program({.heads = 2, .rings = 2}, {}), other("heads"));
  // Ranks of a pair where nothing is written, and of one host all.
  const Case c{.heads = 2, .rings = 4, .what = kLlama};
  EXPECT_EQ(program(c, {test::kPairs, none[0]}), program(c, {test::kPairs}));
  EXPECT_EQ(program(c, none), program({.heads = 4, .rings = 2, .what = kLlama}, {}));
}

TEST_F(HeadsInRings, WhatCannotBeSharedIsRefused) {
  EXPECT_THAT(refusal({.heads = 3, .rings = 2}, {"mesh.axes.sequence=4", "mesh.axes.data=0"}),
              HasSubstr("mesh.axes.sequence"));
  EXPECT_EQ(refusal({.heads = 2, .rings = 2}, {"sequence.head_ranks=3"}),
            "sequence.head_ranks: sequence.head_ranks = 3 does not divide mesh.axes.sequence = 4; "
            "the nearest valid value is 2");
  EXPECT_EQ(
      refusal({.heads = 8, .rings = 1, .what = kLlama}, {}),
      "sequence.head_ranks: sequence.head_ranks = 8 does not divide the 4 key heads of a rank; the "
      "nearest valid value is 4");
  EXPECT_EQ(
      refusal({.heads = 4, .rings = 1, .x = 2, .what = kLlama}, {}),
      "sequence.head_ranks: sequence.head_ranks = 4 does not divide the 2 key heads of a rank; the "
      "nearest valid value is 2");
  EXPECT_EQ(refusal({.heads = 2, .rings = 2}, {"sequence.engine=ring"}),
            "sequence.head_ranks: sequence.head_ranks = 2 cannot take effect with sequence.engine "
            "= \"ring\"; the nearest valid value is 0, or sequence.engine = \"heads_ring\"");
  EXPECT_THAT(refusal({.heads = 1, .rings = 1}, {"sequence.engine=heads_ring"}),
              HasSubstr("mesh.axes.sequence = 2"));
}

}  // namespace
}  // namespace strait
