// Attention, and passing over weights, are priced at rates of their own: steps whose times follow
// from the model's formulas, in the cost model and the simulator alike.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "strait/base/file.h"
#include "strait/config/parse.h"
#include "strait/cost/cost.h"
#include "strait/data/corpus.h"
#include "strait/data/document_loader.h"
#include "strait/data/document_windows.h"
#include "strait/data/token_batches.h"
#include "strait/program/classes.h"
#include "strait/program/program.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/design.h"

namespace strait {
namespace {

// GPT-2 of 2 layers, 32 wide, 128 tokens of context, 50 tokens of vocabulary.
constexpr double kLayers = 2, kWidth = 32, kContext = 128, kVocabulary = 50;

Run run_of(const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"model.preset=nano-char",   "model.shape.layers=2",
                                  "model.shape.width=32",     "model.shape.heads=4",
                                  "model.shape.dropout=0",    "model.shape.context=128",
                                  "model.shape.ffn_width=128"};
  all.insert(all.end(), sets.begin(), sets.end());
  return parse_run("", "test.toml", all);
}

/// Of a step on all ranks: 6 per multiplying parameter and token, and 6 T C per layer and token.
double products(double tokens) {
  return 6 * (kLayers * 12 * kWidth * kWidth + kVocabulary * kWidth) * tokens;
}
double attention(double tokens) { return 6 * kLayers * kContext * kWidth * tokens; }

/// Everything else takes no time.
void set_rates(Cluster& cluster, double products_rate, double attention_rate) {
  cluster.model_flops_per_second_fp32 = products_rate;
  cluster.attention_flops_per_second_fp32 = attention_rate;
  cluster.memory_bytes_per_second = cluster.codec_bytes_per_second = 1e30;
  for (Level& level : cluster.levels) {
    level.bytes_per_second = 1e30;
    level.latency_seconds = level.processor_share = 0;
  }
}

void expect_seconds(const strategy::Design& design, double seconds) {
  const auto& classes = design.steady();
  EXPECT_NEAR(cost::price(classes, design.cluster).compute_seconds, seconds, 1e-9 * seconds);
  for (const program::Program& program : classes)
    EXPECT_NEAR(sim::simulate(program, design.cluster).seconds, seconds, 1e-9 * seconds);
}

TEST(AttentionRate, AStepTakesProductsAndAttentionEachAtItsRate) {
  for (const std::string recompute : {"none", "block"}) {
    strategy::Design design =
        strategy::make_design(run_of({"train.global_batch_size=6", "train.micro_batch_size=2",
                                      "train.recompute=" + recompute}),
                              1, static_cast<int64_t>(kVocabulary));
    const double tokens = 6 * kContext;
    // The blocks' forwards a second time; not the head's.
    const double again = recompute == "block" ? 4.0 / 3 : 1.0;
    const double head = 6 * kVocabulary * kWidth * tokens;
    const double at_products = again * (products(tokens) - head) + head;
    set_rates(design.cluster, 4e9, 1e9);
    expect_seconds(design, at_products / 4e9 + again * attention(tokens) / 1e9);
    set_rates(design.cluster, 4e9, 0);  // without one: as whole blocks
    expect_seconds(design, (at_products + again * attention(tokens)) / 4e9);
  }
}

/// Each micro-step of so few tokens as there may be passes over all of them.
TEST(WeightRate, EveryMicroStepPassesOverTheWeights) {
  const double weights = 3 * (kLayers * 12 * kWidth * kWidth + kVocabulary * kWidth);
  for (const int64_t micro_batch : {1, 3, 6})
    for (const std::string recompute : {"none", "block"}) {
      strategy::Design design =
          strategy::make_design(run_of({"train.global_batch_size=6", "train.recompute=" + recompute,
                                        "train.micro_batch_size=" + std::to_string(micro_batch)}),
                                1, static_cast<int64_t>(kVocabulary));
      set_rates(design.cluster, 1e30, 1e30);
      design.cluster.weights_per_second_fp32 = 1e6;
      const double again = recompute == "block" ? kLayers * 12 * kWidth * kWidth : 0;
      expect_seconds(design, static_cast<double>(6 / micro_batch) * (weights + again) / 1e6);
    }
}

/// A rank of a grid passes over its part, once more for each piece of rows.
TEST(WeightRate, PiecesOfRowsPassOverThemAgain) {
  const auto passed = [](const std::vector<std::string>& sets) {
    std::vector<std::string> all = {"train.global_batch_size=4", "train.micro_batch_size=4",
                                    "mesh.axes.x=2"};
    all.insert(all.end(), sets.begin(), sets.end());
    const strategy::Design design =
        strategy::make_design(run_of(all), 2, static_cast<int64_t>(kVocabulary));
    const program::Program& step = design.steady().front();
    double weights = 0;
    program::for_each_instance(step, [&](const program::Op& op, const program::Loops&) {
      weights += program::cost_of(step, op, program::first_rank(step)).weights;
    });
    return weights;
  };
  const double block = 12 * kWidth * kWidth / 2, head = kVocabulary * kWidth / 2;
  EXPECT_NEAR(passed({}), 3 * (kLayers * block + head), 1e-6);
  // Forward: behind attention and the second of the MLP; backward: the gradients of both inputs.
  const double summed = (1 + 4) * kWidth * kWidth / 2, made = (3 + 4) * kWidth * kWidth / 2;
  EXPECT_NEAR(passed({"tensor.tiles=on:4"}),
              3 * (kLayers * block + head) + 3 * kLayers * (summed + made), 1e-6);
}

TEST(AttentionRate, EveryEngineAndGridHasTheSameAttention) {
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{"mesh.axes.sequence=2", "sequence.engine=gathered"},
        {"mesh.axes.sequence=2", "sequence.engine=ring"},
        {"mesh.axes.sequence=2", "sequence.engine=heads"},
        {"mesh.axes.x=2"},
        {"mesh.axes.stage=2", "pipeline.order=zero-bubble-h1"}}) {
    std::vector<std::string> all = {"train.global_batch_size=4", "train.micro_batch_size=1"};
    all.insert(all.end(), sets.begin(), sets.end());
    const strategy::Design design =
        strategy::make_design(run_of(all), 2, static_cast<int64_t>(kVocabulary));
    double sum = 0;
    for (const program::Program& program : design.steady()) {
      double one = 0;
      program::for_each_instance(program, [&](const program::Op& op, const program::Loops&) {
        const auto cost = program::cost_of(program, op, program::first_rank(program));
        EXPECT_GE(cost.flops, cost.attention_flops);
        one += cost.attention_flops;
      });
      sum += one * static_cast<double>(program::class_size(program));
    }
    EXPECT_NEAR(sum, attention(4 * kContext), 1e-9 * sum) << sets.back();
  }
}

/// Two ranks whose documents one plan spreads: what tiles hold is at attention's rate.
/// What computes has the rate of the run's type, whatever it does: attention alone, gradients of
/// weights alone, rows, rounds of a ring.
TEST(Rates, ThoseOfOtherTypesDecideNothing) {
  const std::vector<std::vector<std::string>> forms = {
      {},
      {"mesh.axes.x=2"},
      {"mesh.axes.x=2", "tensor.tiles=on:2"},
      {"mesh.axes.x=2", "tensor.sequence_parallel=true", "tensor.tiles=on:2"},
      {"mesh.axes.y=2"},
      {"mesh.axes.sequence=2", "sequence.engine=ring"},
      {"mesh.axes.sequence=2", "sequence.engine=gathered"},
      {"mesh.axes.sequence=2", "sequence.engine=heads"},
      {"mesh.axes.sequence=2", "sequence.engine=zeppelin", "train.global_batch_tokens=512"},
      {"mesh.axes.stage=2", "pipeline.order=zero-bubble-h1"}};
  for (const std::string precision : {"fp32", "bf16", "fp64"}) {
    for (std::vector<std::string> sets : forms) {
      if (precision == "fp64") sets.emplace_back("train.recompute=none");
      sets.push_back("train.precision=" + precision);
      if (std::ranges::find(sets, "train.global_batch_tokens=512") == sets.end())
        sets.emplace_back("train.global_batch_size=8");
      strategy::Design design = strategy::make_design(run_of(sets), 2, 64);
      const double before = cost::price(design.steady(), design.cluster).compute_seconds;
      Cluster& cluster = design.cluster;
      const auto others = [&](const char* type, std::vector<double*> rates) {
        if (type != precision)
          for (double* rate : rates) *rate *= 1e-3;
      };
      others("fp32", {&cluster.flops_per_second_fp32, &cluster.model_flops_per_second_fp32,
                      &cluster.attention_flops_per_second_fp32});
      others("bf16", {&cluster.flops_per_second_bf16, &cluster.model_flops_per_second_bf16,
                      &cluster.attention_flops_per_second_bf16});
      others("fp64", {&cluster.flops_per_second_fp64, &cluster.attention_flops_per_second_fp64});
      EXPECT_NEAR(cost::price(design.steady(), cluster).compute_seconds, before, 1e-12 * before)
          << precision << " " << testing::PrintToString(sets);
    }
  }
}

TEST(AttentionRate, DocumentsOfAPlanArePricedAtIt) {
  strategy::Design design = strategy::make_design(
      run_of({"train.global_batch_tokens=256", "mesh.axes.sequence=2", "sequence.engine=packed"}),
      2, static_cast<int64_t>(kVocabulary));
  set_rates(design.cluster, 1e30, 1e9);
  // A document of 128 tokens on each rank, in whole tiles of 64: 64^2 + 64 128 pairs; 4 and 8
  // operations for each and column.
  expect_seconds(design, kLayers * (64 * 64 + 64 * 128) * 12 * kWidth / 1e9);
}

/// Causal pairs of the rank with most over the mean's, token by token: of rows of documents that
/// two ranks share, which wait for each other in each.
double slowest_of_two(const TokenBatches& batches, int64_t rows, int64_t tokens, int64_t steps) {
  DocumentLoader loader(batches, {rows, tokens, tokens});
  double slowest = 0, all = 0;
  for (int64_t batch = 0; batch < steps; ++batch)
    for (int64_t row = 0; row < rows; ++row) {
      double pairs[2] = {0, 0};
      int64_t position = 0;
      for (const int64_t length : loader.lengths(batch, row))
        for (int64_t token = 0; token < length; ++token, ++position) {
          const int64_t chunk = position / (tokens / 4);
          pairs[chunk == 0 || chunk == 3 ? 0 : 1] += static_cast<double>(token + 1);
        }
      slowest += std::max(pairs[0], pairs[1]);
      all += pairs[0] + pairs[1];
    }
  return slowest / (all / 2);
}

/// Rows of documents: attention of a token reaches over its own, not over the context, and a step
/// takes as long as the rank with most.
TEST(AttentionRate, DocumentsOfDataAreAsLongAsTheyAre) {
  const auto run =
      run_of({"train.global_batch_tokens=512", "mesh.axes.sequence=2", "sequence.engine=gathered",
              "data.path=synthetic:lengths/corpus/scale=0.01/longest=32/tokens=4000"});
  const Corpus corpus = make_corpus(run.data);
  double counted[2];
  for (const bool known : {false, true}) {
    const strategy::Design design =
        strategy::make_design(run, 2, 256, 0, known ? &corpus : nullptr);
    const auto& step = design.steady().front();
    double sum = 0;
    program::for_each_instance(step, [&](const program::Op& op, const program::Loops&) {
      sum += program::cost_of(step, op, program::first_rank(step)).attention_flops;
    });
    counted[known] = sum;
  }
  const TokenBatches batches(corpus, 128, 512, run.seed);
  const double length = static_cast<double>(batches.attended_length());
  const double slowest = slowest_of_two(batches, 1, 512, std::min<int64_t>(32, run.train.steps));
  EXPECT_LE(length, 32);
  EXPECT_GT(slowest, 1.01);
  EXPECT_NEAR(counted[1], counted[0] * length / kContext * slowest, 1e-9 * counted[1]);
}

/// Windows hold documents, and attention stays inside of each: utilisation, operations and times
/// count that.
TEST(AttentionRate, WindowsOfDocumentsCountTheAttentionInside) {
  const auto run = run_of({"train.global_batch_size=4",
                           "data.path=synthetic:lengths/corpus/scale=0.01/longest=32/tokens=4000"});
  const Corpus corpus = make_corpus(run.data);
  ASSERT_TRUE(corpus.training.has_documents());
  const auto length = std::round(attended_in_windows(corpus.training, 128));
  EXPECT_LE(length, 32);
  const double linear = 6 * (kLayers * 12 * kWidth * kWidth + 256 * kWidth);
  const double of_each = 6 * kLayers * kWidth;  // of a token, for each one that it attends to
  for (const bool known : {false, true}) {
    strategy::Design design = strategy::make_design(run, 1, 256, 1, known ? &corpus : nullptr);
    const double attended = known ? length : kContext;
    EXPECT_NEAR(design.model_flops_per_token, linear + of_each * attended, 1e-6 * linear);
    set_rates(design.cluster, 1e30, 1e9);
    expect_seconds(design, of_each * attended * 4 * kContext / 1e9);
  }
}

/// Utilisation counts the attention of the documents, not of sequences as long as the context.
TEST(AttentionRate, DocumentsOfAPlanHaveTheWorkOfTheirLengths) {
  const auto run =
      run_of({"train.global_batch_tokens=512", "mesh.axes.sequence=2", "sequence.engine=packed",
              "data.path=synthetic:lengths/corpus/scale=0.01/longest=32/tokens=4000"});
  const Corpus corpus = make_corpus(run.data);
  const auto known = strategy::make_design(run, 2, 256, 0, &corpus);
  const auto assumed = strategy::make_design(run, 2, 256);
  const double linear = 6 * (kLayers * 12 * kWidth * kWidth + 256 * kWidth);
  const double longest = 6 * kLayers * kWidth;  // of a token, for each one that it attends to
  EXPECT_NEAR(assumed.model_flops_per_token, linear + longest * kContext, 1e-6 * linear);
  EXPECT_GT(known.model_flops_per_token, linear);
  EXPECT_LE(known.model_flops_per_token, linear + longest * 32);
}

TEST(AttentionRate, StagesAreCutByIt) {
  const std::string path =
      std::filesystem::temp_directory_path() / "strait_attention_rate_test.toml";
  const auto cuts = [&](const std::string& rates) {
    write_file_atomically(
        path, "levels = [{ name = \"world\", gb_per_second = 1.0 }]\n[rates]\n" + rates);
    // The head of 1,000 tokens costs as much as 2.6 blocks, less than one where attention is slow.
    const strategy::Design design = strategy::make_design(
        run_of({"mesh.axes.stage=2", "model.shape.layers=6", "cluster.file=" + path}), 2, 1000);
    std::filesystem::remove(path);
    return design.pipeline.cuts;
  };
  const std::vector<int64_t> fast = cuts("fp32_model_flops_per_second = 1e10\n");
  const std::vector<int64_t> slow =
      cuts("fp32_model_flops_per_second = 1e10\nfp32_attention_flops_per_second = 1e8\n");
  EXPECT_EQ(slow, (std::vector<int64_t>{4}));
  EXPECT_GT(fast.front(), 4);
}

}  // namespace
}  // namespace strait
