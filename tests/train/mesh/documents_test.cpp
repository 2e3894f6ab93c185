// Batches of whole documents (train.global_batch_tokens): the loss does not depend on how they are
// packed, split or shared (specs: sequences 9d, Z10), and a run goes on with the next document on
// any number of ranks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/reader.h"
#include "strait/report/metrics.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::small_run;
using test::Trained;
using Sets = std::vector<std::string>;

struct Case {
  Sets sets;
  int64_t ranks;
};

const Sets kGpt2 = {};
const Sets kLlama = {"model.family=llama", "model.shape.kv_heads=2", "model.shape.tied_head=false"};

const Sets kNormed = {"model.family=qwen3", "model.shape.kv_heads=2", "model.shape.bias=false"};

const Sets kWindows = {"model.family=mistral", "model.shape.window=9", "model.shape.bias=false"};

const Sets kAlternating = {"model.family=gemma3",          "model.shape.window=9",
                           "model.shape.window_pattern=2", "model.shape.query_scalar=7",
                           "model.shape.bias=false",       "model.shape.kv_heads=2"};

const Sets kCapped = {"model.family=gemma2",        "model.shape.window=9",
                      "model.shape.query_scalar=7", "model.shape.bias=false",
                      "model.shape.kv_heads=2",     "model.shape.score_cap=0.1",
                      "model.shape.logit_cap=1"};

class WholeDocuments : public test::MeshRuns {
 protected:
  strait::Run run_of(const Sets& family, const Sets& more = {}) {
    Sets sets = {"data.document_separator=.\n",   "train.global_batch_size=12",
                 "train.global_batch_tokens=400", "train.steps=8",
                 "train.clip_norm=0.3",           "optimizer.decay_steps=20",
                 "evaluation.every_steps=4",      "runtime.threads_per_rank=1",
                 "model.shape.layers=2",          "model.shape.heads=4",
                 "model.shape.kv_heads=4",        "model.shape.width=16",
                 "model.shape.ffn_width=24",      "model.shape.vocabulary=24",
                 "model.shape.context=40"};
    for (const Sets* other : {&family, &more})
      sets.insert(sets.end(), other->begin(), other->end());
    return small_run(folder_.path(), sets);
  }
  Trained train(const Sets& family, const Case& c) {
    return test::trained(run_of(family, c.sets), c.ranks, next_folder());
  }
};

TEST_F(WholeDocuments, TheLossDoesNotDependOnRowsAndRanks) {
  for (const Sets& family : {kGpt2, kLlama}) {
    // Rows of one context, so that hardly any holds two documents.
    const Trained alone = train(family, {{"sequence.capacity_tokens=40"}, 1});
    for (const Case& c : std::vector<Case>{
             {{}, 1},
             {{"placement.preset=zero3"}, 4},
             {{"placement.preset=zero1", "sequence.capacity_tokens=100"}, 3},
             {{"train.micro_batch_size=3", "placement.preset=zero2"}, 2},
             {{"mesh.axes.sequence=2", "sequence.engine=ring"}, 2},
             {{"mesh.axes.sequence=4", "sequence.engine=ring", "placement.preset=zero3"}, 8},
             {{"mesh.axes.sequence=4", "sequence.engine=gathered"}, 4},
             {{"mesh.axes.sequence=2", "sequence.engine=heads", "placement.preset=zero3"}, 4},
             {{"mesh.axes.sequence=2", "sequence.engine=heads", "sequence.capacity_tokens=30",
               "train.recompute=block"},
              2},
             {{"mesh.axes.sequence=2", "sequence.engine=gathered", "sequence.capacity_tokens=30",
               "train.recompute=block"},
              4},
             {{"mesh.axes.x=2", "mesh.axes.sequence=2"}, 8},
             {{"mesh.axes.x=2", "mesh.axes.sequence=2", "tensor.sequence_parallel=true"}, 8},
             {{"mesh.axes.z=2", "placement.preset=hsdp"}, 4},
             {{"mesh.axes.stage=2", "mesh.axes.sequence=2", "placement.preset=ddp"}, 4},
             {{"mesh.axes.stage=2", "sequence.capacity_tokens=60", "placement.preset=ddp"}, 2}}) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", c.ranks, fmt::join(c.sets, ", ")));
      expect_equal(train(family, c), alone);
    }
  }
}

/// Whichever ranks have which documents.
TEST_F(WholeDocuments, PlansOfBatchesTrainAsOneRankDoes) {
  for (const Sets& family : {kGpt2, kLlama, kWindows, kAlternating, kCapped}) {
    const Trained one = train(family, {{}, 1});
    for (const char* engine : {"packed", "even", "hybrid", "zeppelin"})
      for (Case c : std::vector<Case>{
               {{"mesh.axes.sequence=2"}, 2},
               {{"mesh.axes.sequence=3", "train.recompute=block"}, 3},
               {{"mesh.axes.sequence=4", "placement.preset=zero3"}, 8},
               {{"mesh.axes.sequence=2", "mesh.axes.x=2", "placement.preset=ddp"}, 4}}) {
        c.sets.push_back(fmt::format("sequence.engine={}", engine));
        SCOPED_TRACE(fmt::format("{} ranks, {}", c.ranks, fmt::join(c.sets, ", ")));
        expect_equal(train(family, c), one);
      }
  }
}

/// Whatever rows move between attention and linear modules, which are then even. In packed batches
/// many do.
TEST_F(WholeDocuments, RemappedTokensTrainAsOneRankDoes) {
  for (const Sets& family : {kGpt2, kLlama, kAlternating}) {
    const Trained one = train(family, {{}, 1});
    for (const auto& [engine, remap] :
         {std::pair("packed", "residual"), std::pair("hybrid", "qkv"),
          std::pair("zeppelin", family == kLlama ? "residual" : "qkv")})
      for (Case c : std::vector<Case>{
               {{"mesh.axes.sequence=2"}, 2},
               {{"mesh.axes.sequence=3", "train.recompute=block"}, 3},
               {{"mesh.axes.sequence=4", "placement.preset=zero3"}, 8},
               {{"mesh.axes.sequence=2", "mesh.axes.x=2", "placement.preset=ddp"}, 4}}) {
        c.sets.insert(c.sets.end(),
                      {fmt::format("sequence.engine={}", engine),
                       fmt::format("sequence.remap={}", remap), "sequence.plan=true"});
        SCOPED_TRACE(fmt::format("{} ranks, {}", c.ranks, fmt::join(c.sets, ", ")));
        const std::string folder = next_folder();
        expect_equal(test::trained(run_of(family, c.sets), c.ranks, folder), one);
        int64_t moved = 0;
        for (const report::StepMetrics& step : report::read_metrics(folder + "/metrics.jsonl")) {
          const Json& linear = step.sequence_plan.at("linear");
          moved += linear.at("moved_tokens").as_integer();
          EXPECT_EQ(linear.at("remap").as_string(), remap);
          EXPECT_LE(linear.at("slowest_over_mean").as_number(), 1.03);
        }
        EXPECT_GT(moved, 0);
      }
  }
}

/// Two documents on four ranks: those without one have rows of linear modules alone, which must not
/// count in the segments that go with attention.
TEST_F(WholeDocuments, RanksThatAttendToNothingTrainAsOneRankDoes) {
  const Sets few = {"train.global_batch_tokens=80"};
  for (const Sets& family : {kGpt2, kLlama}) {
    const Trained one = train(family, {few, 1});
    for (const char* remap : {"none", "qkv", "residual"}) {
      SCOPED_TRACE(remap);
      Sets sets = few;
      sets.insert(sets.end(), {"mesh.axes.sequence=4", "sequence.engine=packed",
                               fmt::format("sequence.remap={}", remap), "sequence.plan=true"});
      const std::string folder = next_folder();
      expect_equal(test::trained(run_of(family, sets), 4, folder), one);
      int64_t idle = 0;
      for (const report::StepMetrics& step : report::read_metrics(folder + "/metrics.jsonl"))
        idle += step.sequence_plan.at("tokens").at("least").as_integer() == 0;
      EXPECT_GT(idle, 0);
    }
  }
}

/// Beside what else takes the rows of a block apart, and over 20 steps; the first loss, before
/// anything is updated, to 1e-12.
TEST_F(WholeDocuments, RemappedTokensStandBesideOtherAxesAndSwitches) {
  for (const auto& [family, remap] :
       {std::pair(kLlama, "qkv"), std::pair(kNormed, "residual"), std::pair(kGpt2, "residual")}) {
    const Sets packed = {"sequence.engine=packed", fmt::format("sequence.remap={}", remap),
                         "train.steps=20"};
    const Trained one = train(family, {{"train.steps=20"}, 1});
    for (Case c : std::vector<Case>{
             {{"mesh.axes.sequence=2", "mesh.axes.y=2", "placement.preset=ddp"}, 4},
             {{"mesh.axes.sequence=2", "mesh.axes.x=2", "tensor.tiles=on:3"}, 4},
             {{"mesh.axes.sequence=2", "mesh.axes.z=2", "placement.preset=hsdp",
               "train.recompute=every:2"},
              4},
             {{"mesh.axes.sequence=4", "optimizer.in_backward=true", "train.clip_norm=0"}, 4}}) {
      Sets serial = {"train.steps=20"};
      if (c.sets.back() == "train.clip_norm=0") serial.push_back(c.sets.back());
      c.sets.insert(c.sets.end(), packed.begin(), packed.end());
      SCOPED_TRACE(fmt::format("{} ranks, {}", c.ranks, fmt::join(c.sets, ", ")));
      const Trained got = train(family, c);
      expect_equal(got, serial.size() > 1 ? train(family, {serial, 1}) : one);
      EXPECT_NEAR(got.losses.front(), one.losses.front(), 1e-12 * one.losses.front());
    }
  }
}

/// Of two nodes of two ranks, on links and with room such that some long documents are shared by
/// all four, others by two and short ones by none; what the run printed of its plans says so.
TEST_F(WholeDocuments, ThreeZonesTrainAsOneRankDoes) {
  const Sets batches = {"train.global_batch_tokens=800", "model.shape.context=240",
                        "data.document_separator=wide."};
  const Trained one = train(kLlama, {batches, 1});
  for (const char* fill : {"true", "false"}) {
    Sets sets = batches;
    sets.insert(sets.end(),
                {"cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 50.0, "
                 "latency_microseconds = 0.0 }, { name = \"across\", gb_per_second = 4.0, "
                 "latency_microseconds = 0.0 }]",
                 "mesh.axes.sequence=4", "sequence.engine=zeppelin", "sequence.plan=true",
                 "sequence.capacity_tokens=220", fmt::format("sequence.fill={}", fill)});
    const std::string folder = next_folder();
    expect_equal(test::trained(run_of(kLlama, sets), 4, folder), one);
    std::map<std::string, int64_t> documents;
    for (const report::StepMetrics& step : report::read_metrics(folder + "/metrics.jsonl")) {
      const Json& plan = step.sequence_plan;
      for (const char* zone : {"local", "intra", "inter"})
        documents[zone] += plan.at("documents").at(zone).as_integer();
      EXPECT_LE(plan.at("tokens").at("most").as_integer(), 220);
      EXPECT_GT(plan.at("measured").at("computing_mean_seconds").as_number(), 0);
    }
    for (const char* zone : {"local", "intra", "inter"}) EXPECT_GT(documents[zone], 0) << zone;
  }
}

/// Chunks of what crosses nodes go over other ranks, from one phase to the other.
TEST_F(WholeDocuments, RoutedTransfersTrainAsOneRankDoes) {
  const Sets batches = {"train.global_batch_tokens=800", "model.shape.context=240",
                        "data.document_separator=wide."};
  const Trained one = train(kLlama, {batches, 1});
  for (const Case& c : std::vector<Case>{
           {{"sequence.engine=even", "sequence.routing=2"}, 2},
           {{"sequence.engine=zeppelin", "sequence.routing=2", "sequence.remap=qkv"}, 2},
           {{"sequence.engine=even", "sequence.routing=4", "train.recompute=block"}, 4},
           {{"sequence.engine=even", "sequence.routing=3", "placement.preset=zero3"}, 4}}) {
    Sets sets = batches;
    sets.insert(sets.end(),
                {fmt::format("cluster.levels=[{{ name = \"node\", size = {}, gb_per_second = 1e5, "
                             "latency_microseconds = 0.0 }}, {{ name = \"across\", gb_per_second = "
                             "6e3, latency_microseconds = 0.0 }}]",
                             c.ranks),
                 fmt::format("mesh.axes.sequence={}", 2 * c.ranks), "sequence.plan=true",
                 "sequence.capacity_tokens=300"});
    sets.insert(sets.end(), c.sets.begin(), c.sets.end());
    SCOPED_TRACE(fmt::format("{} ranks, {}", 2 * c.ranks, fmt::join(c.sets, ", ")));
    const std::string folder = next_folder();
    const Trained routed = test::trained(run_of(kLlama, sets), 2 * c.ranks, folder);
    expect_equal(routed, one);
    sets.push_back("sequence.routing=off");
    EXPECT_EQ(routed.hash, train(kLlama, {sets, 2 * c.ranks}).hash);
    int64_t crossing = 0;
    for (const report::StepMetrics& step : report::read_metrics(folder + "/metrics.jsonl")) {
      const int64_t inter = step.sequence_plan.at("documents").at("inter").as_integer();
      EXPECT_EQ(step.sequence_plan.at("routing").at("proxies").as_integer() > 1, inter > 0);
      crossing += inter;
    }
    EXPECT_GT(crossing, 0);
  }
}

/// In bf16, whose sums stand apart from what they are rounded to, norms of gradients are those of
/// one rank but for rounding (2^-9 each).
TEST_F(WholeDocuments, PlansInBfloat16HaveTheGradientsOfOneRank) {
  const auto norms = [&](Sets sets, int64_t ranks) {
    sets.insert(sets.end(), {"train.precision=bf16", "train.steps=3"});
    const std::string folder = next_folder();
    test::train_small(run_of(kLlama, sets), ranks, folder);
    std::vector<double> of_steps;
    for (const report::StepMetrics& step : report::read_metrics(folder + "/metrics.jsonl"))
      of_steps.push_back(step.gradient_norm);
    return of_steps;
  };
  const std::vector<double> one = norms({}, 1);
  const auto expect_near_one = [&](Sets sets) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(sets, ", ")));
    sets.push_back("mesh.axes.sequence=4");
    const std::vector<double> got = norms(sets, 4);
    ASSERT_EQ(got.size(), one.size());
    for (size_t step = 0; step < got.size(); ++step)
      EXPECT_NEAR(got[step] / one[step], 1, 0.004) << "step " << step;
  };
  for (const char* remap : {"none", "qkv", "residual"})
    for (const char* engine : {"packed", "even", "zeppelin"})
      expect_near_one(
          {fmt::format("sequence.engine={}", engine), fmt::format("sequence.remap={}", remap)});
  expect_near_one(
      {"cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 1e5, "
       "latency_microseconds = 0.0 }, { name = \"across\", gb_per_second = 6e3, "
       "latency_microseconds = 0.0 }]",
       "sequence.engine=even", "sequence.routing=rotate:2"});
}

/// Groups of key heads go around rings in orders of their own: all to 1e-9, the same bits from run
/// to run. The first one's order is that without.
TEST_F(WholeDocuments, RotatedKeyGroupsTrainAsOneRankDoes) {
  const Sets batches = {"train.global_batch_tokens=800", "model.shape.context=240",
                        "data.document_separator=wide."};
  struct Rotated {
    Sets family;
    Sets sets;
    int64_t per_node, nodes;
  };
  for (const Rotated& c : std::vector<Rotated>{
           {kLlama, {"sequence.engine=even", "sequence.routing=rotate:2"}, 2, 2},
           {kGpt2, {"sequence.engine=even", "sequence.routing=rotate"}, 2, 2},
           {kGpt2,
            {"sequence.engine=even", "sequence.routing=rotate:3", "train.recompute=block"},
            4,
            2},
           {kGpt2, {"sequence.engine=even", "sequence.routing=rotate:2"}, 3, 2},
           {kLlama, {"sequence.engine=even", "sequence.routing=both:4"}, 4, 2},
           {kGpt2,
            {"sequence.engine=zeppelin", "sequence.routing=both:4", "sequence.remap=qkv",
             "train.recompute=block"},
            4,
            2},
           {kLlama,
            {"sequence.engine=even", "sequence.routing=rotate:2", "placement.preset=zero3"},
            2,
            3},
           {kAlternating,
            {"sequence.engine=zeppelin", "sequence.routing=rotate:2", "sequence.remap=qkv"},
            2,
            2},
           {kCapped,
            {"sequence.engine=zeppelin", "sequence.routing=rotate:2", "sequence.remap=residual",
             "sequence.fill=false"},
            2,
            2}}) {
    const int64_t ranks = c.per_node * c.nodes;
    Sets sets = batches;
    sets.insert(sets.end(),
                {fmt::format("cluster.levels=[{{ name = \"node\", size = {}, gb_per_second = 1e5, "
                             "latency_microseconds = 0.0 }}, {{ name = \"across\", gb_per_second = "
                             "6e3, latency_microseconds = 0.0 }}]",
                             c.per_node),
                 fmt::format("mesh.axes.sequence={}", ranks), "sequence.plan=true",
                 "sequence.capacity_tokens=300"});
    sets.insert(sets.end(), c.sets.begin(), c.sets.end());
    SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, fmt::join(c.sets, ", ")));
    const std::string folder = next_folder();
    const Trained rotated = test::trained(run_of(c.family, sets), ranks, folder);
    expect_equal(rotated, train(c.family, {batches, 1}));
    EXPECT_EQ(rotated.hash, train(c.family, {sets, ranks}).hash);
    int64_t crossing = 0;
    for (const report::StepMetrics& step : report::read_metrics(folder + "/metrics.jsonl")) {
      const int64_t inter = step.sequence_plan.at("documents").at("inter").as_integer();
      EXPECT_EQ(step.sequence_plan.at("routing").at("rotations").as_integer() > 1, inter > 0);
      crossing += inter;
    }
    EXPECT_GT(crossing, 0);
  }
}

TEST_F(WholeDocuments, WhatAPlanCannotDoIsRefused) {
  const auto refused = [&](const Sets& sets, const char* text) {
    try {
      test::train_small(run_of(kGpt2, sets), 4, next_folder());
      ADD_FAILURE() << text;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
    }
  };
  const std::string zeppelin = "sequence.engine=zeppelin", axis = "mesh.axes.sequence=4";
  refused({zeppelin, axis, "train.global_batch_tokens=0"}, "without train.global_batch_tokens");
  refused({zeppelin, "mesh.axes.sequence=2", "mesh.axes.stage=2"}, "mesh.axes.stage = 1");
  refused({zeppelin, axis, "train.micro_batch_size=2"}, "train.micro_batch_size = 1");
  refused({zeppelin, axis, "sequence.capacity_tokens=30"}, "the nearest valid value is 100");
  refused({"sequence.engine=packed", axis, "sequence.capacity_tokens=101"}, "gives a rank ");
  refused({"sequence.plan=true"}, "the nearest valid value is false");
  refused({"sequence.remap=qkv", axis}, "the nearest valid value is \"auto\"");
  refused({"sequence.remap=residual", axis},
          "sequence.remap = \"residual\" cannot take effect with sequence.engine = \"auto\"");
  refused({"sequence.routing=2", axis}, "the nearest valid value is \"auto\"");
  refused({zeppelin, axis, "sequence.routing=2"}, "stays inside a node");
  refused({zeppelin, axis, "sequence.routing=rotate"}, "stays inside a node");
  refused({"sequence.routing=rotate:2", axis}, "the nearest valid value is \"auto\"");
  refused({"sequence.engine=even", axis, "sequence.fill=false"}, "the nearest valid value is true");
}

/// Eight times what a rank holds.
TEST_F(WholeDocuments, AContextLongerThanARankHoldsTrainsOnManyRanks) {
  const Sets long_context = {"model.shape.context=320", "train.global_batch_tokens=640",
                             "data.document_separator=, wide.\n", "train.steps=3"};
  Sets shared = long_context;
  shared.insert(shared.end(), {"mesh.axes.sequence=8", "sequence.capacity_tokens=40"});
  expect_equal(train(kLlama, {shared, 8}), train(kLlama, {long_context, 1}));
}

TEST_F(WholeDocuments, AResumedRunGoesOnWithTheNextDocumentOnOtherRanks) {
  const strait::Run whole = run_of(kLlama);
  const std::string undisturbed = next_folder();
  const Trained expected = test::trained(whole, 1, undisturbed);
  strait::Run first = run_of(kLlama, {"train.steps=5"});
  const std::string folder = next_folder();
  test::trained(first, 4, folder);
  const checkpoint::CheckpointReader saved(folder);
  EXPECT_EQ(saved.manifest().sequences_consumed, 5);
  EXPECT_NE(saved.manifest().extra.find("documents"), nullptr);
  strait::Run rest = run_of(kLlama, {"mesh.axes.sequence=2", "checkpoint.resume=" + folder});
  Trained got = test::trained(rest, 2, next_folder());
  ASSERT_EQ(got.losses.size(), 3U);
  got.losses.insert(got.losses.begin(), expected.losses.begin(), expected.losses.begin() + 5);
  expect_equal(got, expected);
}

/// Its manifest as an earlier version wrote it: the number of a piece.
void count_pieces(const std::string& run_dir, int64_t context) {
  const std::string folder = run_dir + "/checkpoints/" + checkpoint::checkpoint_name(1);
  checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
  const Json saved = manifest.extra.at("documents");
  const int64_t token = saved.at("token").as_integer();
  ASSERT_GT(token, 0) << "the batch ended with a document";
  manifest.extra["documents"] = Json::object({{"epoch", saved.at("epoch").as_integer()},
                                              {"document", saved.at("document").as_integer()},
                                              {"piece", token / context}});
  write_file_atomically(folder + "/" + checkpoint::kManifestFile,
                        checkpoint::manifest_text(manifest));
}

TEST_F(WholeDocuments, AResumedRunMayHaveAnotherContextOrOtherData) {
  for (const bool counted_pieces : {false, true}) {
    const std::string folder = next_folder();
    const Sets few = {"model.shape.context=10", "train.global_batch_tokens=50", "train.steps=1"};
    test::train_small(run_of(kLlama, few), 1, folder);
    if (counted_pieces) count_pieces(folder, 10);
    for (const Sets& changed : std::vector<Sets>{{"model.shape.context=60"},
                                                 {"data.document_separator=unit, "},
                                                 {"data.document_separator=wide.\n"}}) {
      Sets sets = {"checkpoint.resume=" + folder, "train.steps=3"};
      sets.insert(sets.end(), changed.begin(), changed.end());
      const Trained got = test::trained(run_of(kLlama, sets), 2, next_folder());
      for (const double loss : got.losses) EXPECT_TRUE(std::isfinite(loss));
    }
  }
}

TEST_F(WholeDocuments, TokensOfTheReportAreThoseOfTheDocuments) {
  const std::string folder = next_folder();
  strait::Run run = run_of(kGpt2, {"train.steps=5"});
  const train::Outcome outcome = test::train_small(run, 4, folder);
  const checkpoint::CheckpointReader saved(folder);
  EXPECT_EQ(saved.manifest().tokens, outcome.tokens);
  EXPECT_LE(outcome.tokens, 5 * 400);
  EXPECT_GT(outcome.tokens, 5 * (400 - 40));
}

TEST_F(WholeDocuments, AStreamIsRefused) {
  strait::Run run = run_of(kGpt2, {"data.document_separator="});
  try {
    test::train_small(run, 1, next_folder());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("is one stream"));
  }
}

}  // namespace
}  // namespace strait
