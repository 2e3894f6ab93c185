// Ranks that share every sequence (mesh axis sequence, engines gathered, ring and heads) train as
// one rank does (specs: sequences 9d, Z3, Z4, Z5, Z10): with every other axis and placement,
// documents, windows, dropout and recomputation; their bytes, memory, checkpoints, and what is
// refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "strait/base/errors.h"
#include "strait/cost/cost.h"
#include "strait/draft/block_kernels.h"
#include "strait/program/memory.h"
#include "strait/sequence/price.h"
#include "strait/sequence/traffic.h"
#include "strait/sim/simulate.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::Bytes;
using test::small_run;
using test::Trained;
using Sets = std::vector<std::string>;

constexpr int64_t kGlobalBatch = 8, kContext = 16, kLayers = 2, kSteps = 6;

/// What a run computes, which decides its result, and on which ranks.
struct Case {
  int64_t sequence;
  int64_t x = 1, y = 1, z = 1, data = 1, stages = 1;
  std::string placement = "ddp";
  Sets what = {};  // decides the result
  Sets how = {};   // does not
  int64_t micro_batches = 2;
  int64_t ranks() const { return sequence * x * y * z * data * stages; }
  std::string text() const {
    std::string text = fmt::format("sequence {}, {} x {} x {}, data {}, stages {}, {}", sequence, x,
                                   y, z, data, stages, placement);
    for (const auto* sets : {&what, &how})
      for (const std::string& set : *sets) text += ", " + set;
    return text;
  }
};

const Sets kLlama = {"model.family=llama", "model.shape.kv_heads=2", "model.shape.tied_head=false"};
const Sets kNormed = {"model.family=qwen3", "model.shape.bias=false", "model.shape.kv_heads=2"};
const Sets kWindows = {"model.family=mistral", "model.shape.window=5", "model.shape.bias=false"};
const Sets kAlternating = {"model.family=gemma3",          "model.shape.window=5",
                           "model.shape.window_pattern=2", "model.shape.query_scalar=9",
                           "model.shape.bias=false",       "model.shape.dropout=0",
                           "model.rope.local_theta=100"};
const Sets kCapped = {"model.family=gemma2",          "model.shape.window=5",
                      "model.shape.window_pattern=2", "model.shape.query_scalar=9",
                      "model.shape.bias=false",       "model.shape.dropout=0",
                      "model.shape.score_cap=0.1",    "model.shape.logit_cap=1"};
const Sets kDocuments = {"data.document_separator=.\n"};
const std::string kGathered = "sequence.engine=gathered", kRing = "sequence.engine=ring",
                  kHeads = "sequence.engine=heads";

/// Those that the ranks of a case can share sequences by.
std::vector<std::string> engines_of(const Case& c) {
  std::vector<std::string> engines = {kGathered, kRing};
  const int64_t key_heads = (c.what == kLlama || c.what == kNormed ? 2 : 4) / c.x;
  if (key_heads % c.sequence == 0) engines.push_back(kHeads);
  return engines;
}

class SharedSequences : public test::MeshRuns {
 protected:
  strait::Run run_of(const Case& c, const Sets& more = {}) {
    Sets sets = {
        "mesh.axes.sequence=" + std::to_string(c.sequence),
        "mesh.axes.x=" + std::to_string(c.x),
        "mesh.axes.y=" + std::to_string(c.y),
        "mesh.axes.z=" + std::to_string(c.z),
        "mesh.axes.stage=" + std::to_string(c.stages),
        "placement.preset=" + c.placement,
        "train.steps=" + std::to_string(kSteps),
        "train.global_batch_size=" + std::to_string(kGlobalBatch),
        "train.micro_batch_size=" + std::to_string(kGlobalBatch / (c.data * c.z) / c.micro_batches),
        "train.clip_norm=0.3",
        "optimizer.decay_steps=20",
        "runtime.threads_per_rank=1",
        "model.shape.layers=" + std::to_string(kLayers),
        "model.shape.heads=4",
        "model.shape.kv_heads=4",
        "model.shape.width=16",
        "model.shape.ffn_width=24",
        "model.shape.vocabulary=24",
        "model.shape.dropout=0.1",
        "model.shape.context=" + std::to_string(kContext)};
    for (const Sets* other : {&c.what, &c.how, &more})
      sets.insert(sets.end(), other->begin(), other->end());
    return small_run(folder_.path(), sets);
  }
  Trained train(const Case& c, const Sets& more = {}) {
    return test::trained(run_of(c, more), c.ranks(), next_folder());
  }
  const Trained& serial(const Sets& what) {
    const auto [found, fresh] = serial_.try_emplace(what);
    if (fresh) found->second = train({.sequence = 1, .what = what});
    return found->second;
  }
  void expect_one_rank(const std::vector<Case>& cases) {
    for (Case c : cases)
      for (const std::string& engine : engines_of(c)) {
        c.how.push_back(engine);
        SCOPED_TRACE(c.text());
        expect_equal(train(c), serial(c.what));
        c.how.pop_back();
      }
  }

  /// Of the keys and the sums of their gradients, per step.
  static Bytes gathered_bytes(const Job& job) {
    // What all ranks together move is (g - 1) times the vector.
    const sequence::Traffic twice = sequence::gathered_traffic(kTokens, heads(job), {8, 8}, false);
    const int64_t gradients = sequence::gathered_traffic(kTokens, heads(job), {8, 8}).backward;
    Bytes bytes;
    test::add_exchange(bytes, "all-gather",
                       kLayers * (twice.forward + twice.backward - gradients) / 3, {4, 1});
    test::add_exchange(bytes, "reduce-scatter", kLayers * gradients / 3, {4, 1});
    return bytes;
  }
  static Bytes ring_bytes(const Job& job, bool again) {
    const std::vector<int32_t> ranks = {0, 1, 2, 3};
    const auto [inside, between] = sequence::ring_levels(kTokens, ranks, 2, heads(job), {8, 8});
    const auto of_step = [&](const sequence::Traffic& traffic) {
      return kLayers * ((again ? 2 : 1) * traffic.forward + traffic.backward);
    };
    return {{{"shift", 0}, of_step(inside)}, {{"shift", 1}, of_step(between)}};
  }
  /// Of three others one is in the pair.
  static Bytes heads_bytes(const Job& job, bool again) {
    const sequence::Traffic traffic = sequence::heads_traffic(kTokens, heads(job), {8, 8}) +
                                      sequence::delta_traffic(kTokens, heads(job), {8, 8});
    const int64_t all = kLayers * ((again ? 2 : 1) * traffic.forward + traffic.backward);
    return {{{"all-to-all", 0}, all / 3}, {{"all-to-all", 1}, all / 3 * 2}};
  }

 private:
  static sequence::Heads heads(const Job& job) {
    const ShapeOptions& options = job.design.shape.options;
    return {options.heads, options.kv_heads, options.head_elements()};
  }

  static inline const std::vector<int64_t> kTokens =
      std::vector<int64_t>(4, kGlobalBatch* kContext / 4);
  std::map<Sets, Trained> serial_;
};

TEST_F(SharedSequences, EqualOneRank) {
  std::vector<Case> cases;
  for (const Sets& what : {Sets{}, kLlama, kNormed, kWindows, kAlternating, kCapped, kDocuments})
    for (const int64_t ranks : {2, 4, 8}) cases.push_back({.sequence = ranks, .what = what});
  expect_one_rank(cases);
}

TEST_F(SharedSequences, EqualOneRankBesideEveryOtherAxis) {
  expect_one_rank(
      {{.sequence = 2, .x = 2},
       {.sequence = 2, .x = 2, .y = 2, .what = kDocuments},
       {.sequence = 4, .y = 2, .what = kLlama},
       {.sequence = 2, .data = 2, .placement = "zero1"},
       {.sequence = 2, .data = 2, .placement = "zero2", .what = kLlama},
       {.sequence = 2, .data = 2, .placement = "zero3", .how = {"train.recompute=block"}},
       {.sequence = 4, .data = 2, .placement = "zero3", .what = kWindows},
       {.sequence = 2, .x = 2, .stages = 2, .placement = "zero1", .what = kAlternating},
       {.sequence = 2, .x = 2, .what = kAlternating, .how = {"train.recompute=block"}},
       {.sequence = 2, .x = 2, .stages = 2, .placement = "zero1", .what = kCapped},
       {.sequence = 2, .z = 2, .placement = "hsdp"},
       {.sequence = 2, .stages = 2, .what = kLlama},
       {.sequence = 2, .data = 2, .stages = 2, .placement = "zero1", .what = kDocuments},
       {.sequence = 2, .stages = 2, .how = {"pipeline.order=zero-bubble-h1"}, .micro_batches = 4},
       {.sequence = 2, .x = 2, .stages = 2, .what = kDocuments},
       {.sequence = 4, .how = {"train.recompute=every:2"}},
       {.sequence = 2, .x = 2, .data = 2, .placement = "zero1", .what = kNormed}});
}

/// Every query sees its keys in one pass and in order: only sums over tokens differ.
TEST_F(SharedSequences, ForwardsHaveTheBitsOfOneRank) {
  for (const char* precision : {"fp32", "bf16"})
    for (const Sets& what : {Sets{}, kLlama, kWindows, kAlternating, kCapped, kDocuments}) {
      const Sets sets = {std::string("train.precision=") + precision, "train.steps=1"};
      const Trained want = train({.sequence = 1, .what = what}, sets);
      for (const int64_t ranks : {2, 4})
        for (const std::string& engine : engines_of({.sequence = ranks, .what = what})) {
          if (engine == kRing) continue;
          const Case c{.sequence = ranks, .what = what, .how = {engine}};
          SCOPED_TRACE(precision + (", " + c.text()));
          EXPECT_NEAR(train(c, sets).losses[0], want.losses[0], 1e-14 * want.losses[0]);
        }
    }
}

TEST_F(SharedSequences, Bfloat16TrainsAlongsideOneRank) {
  const Trained want = train({.sequence = 1}, {"train.precision=bf16"});
  for (const std::string& engine : {kGathered, kRing, kHeads}) {
    const Trained got = train({.sequence = 4, .how = {engine}}, {"train.precision=bf16"});
    for (size_t step = 0; step < want.losses.size(); ++step)
      EXPECT_NEAR(got.losses[step], want.losses[step], 0x1p-8 * want.losses[step]) << step;
  }
}

/// Long chunks go around part by part in a backward: here two of each of a ring's four ranks, and
/// four where two neighbours exchange heads.
TEST_F(SharedSequences, LongChunksGoAroundInParts) {
  const Sets windows = {"model.family=mistral", "model.shape.window=300", "model.shape.bias=false"};
  for (Sets what : {Sets{}, kLlama, windows, kDocuments}) {
    what.insert(what.end(), {"model.shape.context=2048", "model.shape.layers=1",
                             "train.global_batch_size=2", "train.steps=2"});
    const Trained want = train({.sequence = 1, .what = what, .micro_batches = 8});
    for (const auto& [heads, parts] : {std::pair{1, 2}, {2, 4}}) {
      const Sets how = {"sequence.engine=" + std::string(heads == 1 ? "ring" : "heads_ring"),
                        fmt::format("sequence.head_ranks={}", heads == 1 ? 0 : heads)};
      const Case c{.sequence = 4, .what = what, .how = how, .micro_batches = 8};
      SCOPED_TRACE(c.text());
      const Job job = make_job(run_of(c), 4);
      int64_t most = 0;
      program::for_each_op(job.design.steady().front().body, [&](const program::Op& op) {
        if (op.kernel == &draft::kPackKeys)
          most = std::max(most, program::attribute<int64_t>(op, draft::kParts));
      });
      EXPECT_EQ(most, parts);
      expect_equal(train(c), want);
      test::expect_predicted_memory(test::train_small(run_of(c), 4, next_folder()));
    }
  }
}

TEST_F(SharedSequences, CheckpointsGoFromAnyShareToAnyOther) {
  const std::vector<Case> parts = {
      {.sequence = 4}, {.sequence = 1, .data = 2, .placement = "zero3"}, {.sequence = 2, .x = 2}};
  const std::string run_dir = next_folder();
  Trained got;
  for (size_t part = 0; part < parts.size(); ++part) {
    SCOPED_TRACE(parts[part].text());
    const strait::Run run = run_of(
        parts[part], {"train.steps=" + std::to_string(2 * (part + 1)), "checkpoint.resume=auto"});
    got = test::trained(run, parts[part].ranks(), run_dir);
  }
  expect_equal(got, serial({}));
}

TEST_F(SharedSequences, ARingHasTheSameBitsFromRunToRun) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Case c{.sequence = 4, .what = kLlama, .how = {kRing}};
    const Sets sets = {std::string("train.precision=") + precision, "train.steps=3"};
    EXPECT_EQ(train(c, sets).losses, train(c, sets).losses) << precision;
  }
}

TEST_F(SharedSequences, BytesAreClosedFormsInAllReaders) {
  for (const std::string& engine : {kGathered, kRing, kHeads})
    for (const bool again : {false, true}) {
      const Case c{.sequence = 4, .what = engine == kHeads ? Sets{} : kLlama, .how = {engine}};
      SCOPED_TRACE(c.text() + (again ? ", recomputing" : ""));
      strait::Run run = run_of(c, {"train.steps=3", test::kPairs,
                                   std::string("train.recompute=") + (again ? "block" : "none")});
      run.output.run_dir = next_folder();
      const Job job = make_job(run, c.ranks());
      const train::Outcome outcome = test::outcome_of(job);
      Bytes want = engine == kRing    ? ring_bytes(job, again)
                   : engine == kHeads ? heads_bytes(job, again)
                                      : gathered_bytes(job);
      for (const UnitShape& unit : job.design.shape.units)
        test::add_exchange(want, "all-reduce", 2 * unit.elements * 8, {4, 1});
      test::add_exchange(want, "all-reduce", 2 * test::kAgreedBytes, {4, 1}, true);
      test::expect_bytes(job, outcome.traffic, 3, want);
    }
}

TEST_F(SharedSequences, MemoryIsWhatTheAllocatorSaw) {
  for (Case c : {Case{.sequence = 4}, Case{.sequence = 2, .x = 2, .placement = "zero3"},
                 Case{.sequence = 2, .stages = 2, .how = {"train.recompute=block"}}})
    for (const std::string& engine : {kGathered, kRing, kHeads})
      for (const char* precision : {"fp64", "bf16"}) {
        const Sets sets = {engine, std::string("train.precision=") + precision, "train.steps=3"};
        SCOPED_TRACE(c.text() + ", " + engine + ", " + precision);
        test::expect_predicted_memory(test::train_small(run_of(c, sets), c.ranks(), next_folder()));
      }
}

/// Z14's neighbour: what a ring holds beside the state falls as one over its ranks (5 %).
TEST_F(SharedSequences, MemoryOfARingFallsAsItsRanks) {
  const auto activations = [&](int64_t ranks) {
    const Case c{
        .sequence = ranks,
        .what = kLlama,
        .how = {kRing, "model.shape.context=8192", "model.shape.layers=16", "model.shape.width=64",
                "model.shape.ffn_width=192", "train.global_batch_size=2"},
        .micro_batches = 8};
    const Job job = make_job(run_of(c), ranks);
    const program::Program& step = job.design.steady().front();
    return static_cast<double>(ranks * program::peak_memory(step, 0).activations);
  };
  const double of_two = activations(2);
  for (const int64_t ranks : {4, 8, 16}) EXPECT_NEAR(activations(ranks), of_two, 0.05 * of_two);
}

/// The most that activations and workspaces take together on the first rank.
int64_t activations_and_workspace(program::Program step) {
  for (program::ValueArray& array : step.arrays)
    if (array.category != program::Category::kActivations) array.partition = {};
  return program::peak_memory(step, 0).total();
}

/// So it does from one rank on, whose fused blocks have a workspace in place of a ring (5 %).
TEST_F(SharedSequences, MemoryOfOneRankFallsAsItsRanks) {
  const std::map<std::string, Sets> families = {
      {"GPT-2", {"model.shape.dropout=0"}},
      {"GPT-2 in bf16", {"model.shape.dropout=0", "train.precision=bf16"}},
      {"Llama", {"model.family=llama", "model.shape.tied_head=false"}},
      {"Llama in bf16",
       {"model.family=llama", "model.shape.tied_head=false", "train.precision=bf16"}}};
  std::string figures;
  for (const auto& [family, what] : families)
    for (const int layers : {4, 8, 12}) {
      const auto of_all = [&](int64_t ranks, const std::string& engine) {
        Case c{.sequence = ranks,
               .what = what,
               .how = {"model.shape.context=8192", fmt::format("model.shape.layers={}", layers),
                       "model.shape.width=64", "model.shape.ffn_width=256",
                       "train.global_batch_size=2"},
               .micro_batches = 8};
        if (ranks > 1) c.how.push_back(engine);
        const Job job = make_job(run_of(c), ranks);
        return static_cast<double>(ranks * activations_and_workspace(job.design.steady().front()));
      };
      const double of_one = of_all(1, "");
      figures += fmt::format("\n{}, {} layers, {:.1f} MB:", family, layers, 1e-6 * of_one);
      for (const int64_t ranks : {2, 4, 8})
        for (const std::string& engine : {kRing, kHeads}) {
          if (engine == kHeads && ranks == 8) continue;  // of 4 heads
          const double of_ranks = of_all(ranks, engine);
          figures += fmt::format(" {} ranks {:+.1f} %", ranks, 100 * (of_ranks / of_one - 1));
          EXPECT_NEAR(of_ranks, of_one, 0.05 * of_one) << engine << figures;
        }
    }
  RecordProperty("figures", figures);
}

/// Keys travel while those that are there are attended to, and their gradients, from first to last:
/// where a rank has twice the tokens that hide a transfer (sequence::hiding_tokens), at least nine
/// tenths of all transfers.
TEST_F(SharedSequences, ARingHidesItsTransfers) {
  constexpr int64_t kTokens = 1024, kWidth = 16, kMicroBatches = 8;
  for (const int64_t ranks : {2, 4, 8}) {
    const auto step = [&](const std::string& engine, double bytes_per_second) {
      const Case c{.sequence = ranks,
                   .what = {fmt::format("model.shape.context={}", ranks * kTokens)},
                   .how = {engine},
                   .micro_batches = kMicroBatches};
      const std::string levels = fmt::format(
          "cluster.levels=[{{ name = \"world\", size = 0, gb_per_second = {}, "
          "latency_microseconds = 1.0 }}]",
          bytes_per_second / 1e9);
      return make_job(run_of(c, {levels}), ranks).simulated;
    };
    sequence::Machine machine;
    machine.attention_flops = make_cluster({}, ranks).attention_flops_per_second(Dtype::kFloat64);
    const sequence::Layer layer{.heads = {4, 4, kWidth / 4}, .bytes = {8, 8}};
    const double rate = sequence::hiding_tokens(machine, layer, 1) / (kTokens / 2.0);
    const sim::Result free = step(kRing, 1e15), ring = step(kRing, rate),
                      gathered = step(kGathered, rate);
    EXPECT_NEAR(gathered.compute_seconds, ring.compute_seconds, 0.05 * ring.compute_seconds);
    const double hop = static_cast<double>(kTokens * 2 * kWidth * 8) / rate;
    const double transfers =  // keys, keys again, and sums of their gradients
        static_cast<double>(3 * (ranks - 1) * kLayers * kMicroBatches) * hop;
    EXPECT_LT(ring.seconds - free.seconds, 0.1 * transfers) << ranks;
    EXPECT_GT(gathered.seconds - free.seconds, 0.3 * transfers) << ranks;
  }
}

TEST_F(SharedSequences, WhatCannotBeSharedIsRefused) {
  const auto refusal = [&](const Case& c, const Sets& sets) -> std::string {
    try {
      make_job(run_of(c, sets), c.ranks());
    } catch (const UserError& error) {
      return error.place().key.value_or("no key") + ": " + error.what();
    }
    return "accepted";
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal({.sequence = 2}, {"model.shape.context=18"}),
              HasSubstr("model.shape.context: model.shape.context = 18 cannot be cut into 2 equal "
                        "chunks for each of mesh.axes.sequence = 2 ranks; the nearest valid values "
                        "are 16 or 20"));
  EXPECT_THAT(refusal({.sequence = 1}, {"sequence.engine=gathered"}),
              HasSubstr("mesh.axes.sequence = 2"));
  EXPECT_THAT(refusal({.sequence = 1}, {kRing}), HasSubstr("mesh.axes.sequence = 2"));
  EXPECT_THAT(refusal({.sequence = 2}, {"sequence.engine=rings"}), HasSubstr("ring"));
  EXPECT_THAT(refusal({.sequence = 2}, {"sequence.engine=hybrid"}), HasSubstr("sequence.engine: "));
  EXPECT_THAT(refusal({.sequence = 4, .what = kLlama, .how = {kHeads}}, {}),
              HasSubstr("sequence.engine: sequence.engine = \"heads\" cannot give "
                        "mesh.axes.sequence = 4 ranks the same number of 2 key heads each; the "
                        "nearest valid value is \"ring\", or mesh.axes.sequence = 2"));
  EXPECT_THAT(refusal({.sequence = 2}, {"sequence.capacity_tokens=4"}),
              HasSubstr("sequence.capacity_tokens: "));
  EXPECT_THAT(refusal({.sequence = 3}, {"mesh.axes.sequence=2"}), HasSubstr("does not divide"));
  EXPECT_THAT(refusal({.sequence = 2}, {"runtime.device=cuda"}), HasSubstr("mesh.axes.sequence: "));
}

}  // namespace
}  // namespace strait
