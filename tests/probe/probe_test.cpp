// The probe gives rates of plausible size, and its file is read back as the same cluster.
#include "strait/probe/probe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "strait/base/errors.h"
#include "strait/config/cluster_file.h"
#include "strait/config/parse.h"
#include "strait/probe/attention_work.h"
#include "strait/probe/probe_work.h"
#ifdef STRAIT_MPI
#include "strait/probe/probe_mpi.h"
#endif

namespace strait::measure {
namespace {

ProbeOptions small_probe(int64_t ranks) {
  return {.ranks = ranks,
          .threads_per_rank = 1,
          .gemm_size = 96,
          .copy_bytes = 1 << 20,
          .codec_elements = 5000,
          .transfer_bytes = 1 << 20,
          .runs = 5};
}

TEST(Probe, MeasuresEveryRate) {
  for (const int64_t ranks : {1, 2, 3}) {
    const ProbeResult result = probe(small_probe(ranks));
    EXPECT_EQ(result.ranks, ranks);
    EXPECT_EQ(result.threads_per_rank, 1);
    // Between a pocket calculator and a supercomputer: only wrong units fall outside.
    for (const double rate :
         {result.fp32_flops_per_second, result.fp64_flops_per_second,
          result.bf16_flops_per_second.value_or(1e9), result.fp32_model_flops_per_second,
          result.bf16_model_flops_per_second, result.fp32_attention_flops_per_second,
          result.fp64_attention_flops_per_second, result.bf16_attention_flops_per_second,
          result.codec_bytes_per_second, result.memcpy_bytes_per_second,
          result.streaming_bytes_per_second, result.transport_bytes_per_second}) {
      EXPECT_GT(rate, 1e5);
      EXPECT_LT(rate, 1e14);
    }
    EXPECT_GT(result.memory_bytes, 1 << 20);
    EXPECT_EQ(result.transport_latency_seconds > 0.0, ranks > 1);
    EXPECT_LT(result.transport_latency_seconds, 1.0);
  }
}

TEST(Probe, NothingPassesTheRateOfProducts) {
  ProbeResult result;
  result.fp32_flops_per_second = 39e9;
  result.fp64_flops_per_second = 20e9;
  result.bf16_flops_per_second = 70e9;
  const auto attention = [](Dtype dtype) { return dtype == Dtype::kFloat64 ? 23e9 : 45e9; };
  const auto blocks = [](Dtype dtype) {
    return BlockRates{60e9, dtype == Dtype::kBfloat16 ? 2e9 : 3e9};
  };
  fill_block_rates(result, attention, blocks);
  EXPECT_EQ(result.fp32_weights_per_second, 3e9);
  EXPECT_EQ(result.bf16_weights_per_second, 2e9);
  EXPECT_EQ(result.fp32_flops_per_second, 60e9);
  EXPECT_EQ(result.fp64_flops_per_second, 23e9);
  EXPECT_EQ(result.bf16_flops_per_second, 70e9);
  result.bf16_flops_per_second.reset();
  fill_block_rates(result, attention, blocks);
  EXPECT_FALSE(result.bf16_flops_per_second);
}

TEST(Probe, ZeroRanksMeansTheCores) {
  ProbeOptions options = small_probe(0);
  options.threads_per_rank = 0;
  const ProbeResult result = probe(options);
  EXPECT_EQ(result.ranks, result.cores);
  EXPECT_EQ(result.threads_per_rank, 1);
}

Run llama_run() {
  return parse_run(
      "model.preset = \"nano-char\"\nmodel.family = \"llama\"\n"
      "model.shape = { layers = 6, width = 64, heads = 4, kv_heads = 2, ffn_width = 128, context = "
      "32 }\n"
      "train.global_batch_size = 12\n",
      "llama.toml");
}

TEST(Probe, TimesABlockOfTheRun) {
  ProbeOptions options = small_probe(2);
  options.run = llama_run();
  const ProbeResult result = probe(options);
  EXPECT_EQ(result.block, "llama, 64 wide, 6 x 32 tokens");
  EXPECT_NE(render_cluster_file(result).find("llama, 64 wide, 6 x 32 tokens"), std::string::npos);
  EXPECT_GT(result.fp32_model_flops_per_second, 1e5);
}

TEST(Probe, ABlockHasTheOperationsOfItsShape) {
  const BlockCase block = block_of_run(llama_run(), 4);
  EXPECT_EQ(block.run.model.shape.layers, 1);
  EXPECT_EQ(block.run.train.global_batch_size, 3);
  BlockCase twice = block;
  twice.run.train.global_batch_size *= 2;
  EXPECT_DOUBLE_EQ(ModelWork(twice, Dtype::kFloat32, 1).flops(),
                   2 * ModelWork(block, Dtype::kFloat32, 1).flops());
}

TEST(Probe, LongSequencesAreCut) {
  strait::Run run = llama_run();
  run.model.shape.context = 4 * 1024 + 4;
  const BlockCase block = block_of_run(run, 4);
  EXPECT_EQ(block.run.model.shape.context, 820);
  EXPECT_EQ(block.run.train.global_batch_size, 3 * 5);
}

TEST(Probe, AttentionIsCheckedAndCounted) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16})
    for (const AttentionCase& shape :
         {AttentionCase{}, AttentionCase{1, 1}, AttentionCase{67, 80}, AttentionCase{1024, 128}}) {
      AttentionWork work(shape, dtype, 2);
      EXPECT_NE(work.check(), "") << "nothing has run";
      for (int run = 0; run < 2; ++run) {
        work.run();
        EXPECT_EQ(work.check(), "");
      }
      const double once =
          2 * 12.0 * static_cast<double>(shape.tokens * shape.tokens * shape.head_width);
      EXPECT_EQ(std::fmod(work.flops(), once), 0);
      EXPECT_GE(work.flops(), std::min(2e8, 1000 * once));  // or starting threads would count
      EXPECT_LT(work.flops(), 2e8 + once);
    }
  EXPECT_EQ(attention_of({}).tokens, 512);
  const AttentionCase of_run = attention_of(llama_run());
  EXPECT_EQ(of_run.tokens, 32);
  EXPECT_EQ(of_run.head_width, 16);
  strait::Run large = llama_run();
  large.model.shape.context = 1 << 20;
  large.model.shape.heads = 1;
  large.model.shape.width = 512;
  EXPECT_EQ(attention_of(large).tokens, 1024);
  EXPECT_EQ(attention_of(large).head_width, 512);
}

/// Block and attention together take what was measured.
TEST(Probe, WhatAttentionTakesIsNotTakenByTheRestOfABlock) {
  const BlockCase block = block_of_run(llama_run(), 4);
  const ModelWork work(block, Dtype::kFloat32, 1);
  // 6 T C for each of 3 x 32 tokens; a head beside the block takes more products.
  EXPECT_EQ(work.attention_flops(), 6.0 * 32 * 64 * (3 * 32));
  const double products = work.flops() - work.attention_flops();
  const double slow = work.attention_flops() / 0.25;
  const auto rate = [&](double attention_rate) {
    return block_rates({&work, 1.0}, {}, {1e30, attention_rate, 1e30}).flops_per_second;
  };
  EXPECT_NEAR(rate(slow), products / 0.75, 1e-6 * products);
  EXPECT_NEAR(rate(1e30), products, 1e-6 * products);
  // What cannot be: no more than twice the rate of both.
  EXPECT_NEAR(rate(slow / 100), 2 * work.flops(), 1e-6 * work.flops());
}

/// Seconds that follow the tokens and seconds of the weights are found again.
TEST(Probe, WhatWeightsTakeIsToldByABlockOfFewerTokens) {
  BlockCase block = block_of_run(llama_run(), 1);
  EXPECT_EQ(block.run.train.global_batch_size, 12);
  const auto fewer = with_fewer_tokens(block);
  ASSERT_TRUE(fewer);
  EXPECT_EQ(fewer->run.train.global_batch_size, 3);
  const ModelWork many(block, Dtype::kFloat32, 1), few(*fewer, Dtype::kFloat32, 1);
  // Forward and two products of a backward, of the block and of the head; the same for any tokens.
  const double weights = 3 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 64 * 256);
  EXPECT_EQ(many.weights(), weights);
  EXPECT_EQ(few.weights(), weights);
  const auto products = [](const ModelWork& work) { return work.flops() - work.attention_flops(); };
  const auto seconds = [&](const ModelWork& work, double rate, double weight_rate) {
    return products(work) / rate + weights / weight_rate;
  };
  const OtherRates others{1e30, 1e30, 50e9};
  const auto found = [&](double rate, double weight_rate) {
    return block_rates({&many, seconds(many, rate, weight_rate)},
                       {&few, seconds(few, rate, weight_rate)}, others);
  };
  EXPECT_NEAR(found(40e9, 1e9).flops_per_second, 40e9, 1e3);
  EXPECT_NEAR(found(40e9, 1e9).weights_per_second, 1e9, 1e2);
  EXPECT_EQ(found(40e9, 1e30).weights_per_second, 0);
  // Nothing passes the rate of products: the rest is the weights'.
  const BlockRates bounded = found(80e9, 1e8);
  EXPECT_NEAR(bounded.flops_per_second, 50e9, 1e3);
  EXPECT_NEAR(seconds(many, 50e9, bounded.weights_per_second), seconds(many, 80e9, 1e8), 1e-12);
  // A disturbed run of many tokens tells nothing about weights.
  const double disturbed = 2 * seconds(many, 40e9, 1e30);
  const BlockRates slow = block_rates({&many, disturbed}, {&few, seconds(few, 40e9, 1e30)}, others);
  EXPECT_EQ(slow.weights_per_second, 0);
  EXPECT_NEAR(slow.flops_per_second, 20e9, 1e3);
}

TEST(Probe, FewerTokensAreFewerOrShorterSequences) {
  BlockCase block = block_of_run(llama_run(), 12);
  EXPECT_EQ(block.run.train.global_batch_size, 1);
  EXPECT_FALSE(with_fewer_tokens(block)) << "32 tokens";
  block.run.model.shape.context = 64;
  ASSERT_TRUE(with_fewer_tokens(block));
  EXPECT_EQ(with_fewer_tokens(block)->run.model.shape.context, 16);
  block.run.train.global_batch_size = 2;
  EXPECT_EQ(with_fewer_tokens(block)->run.train.global_batch_size, 1);
  EXPECT_EQ(with_fewer_tokens(block)->run.model.shape.context, 64);
}

TEST(Probe, RefusesARunThatDoesNotFitTheRanks) {
  EXPECT_THROW(block_of_run(llama_run(), 5), UserError);
  strait::Run modules = llama_run();
  modules.model.family = "modules";
  EXPECT_THROW(block_of_run(modules, 1), UserError);
}

/// Before anything is divided by them.
TEST(Probe, RefusesValuesThatNoRunMayHave) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"model.shape.layers", "0"},
                                                        {"train.micro_batch_size", "-1"},
                                                        {"model.shape.heads", "0"},
                                                        {"model.shape.context", "0"}}) {
    try {
      block_of_run(parse_run("", "run.toml", {"model.preset=nano-char", key + "=" + value}), 1);
      ADD_FAILURE() << key;
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().key, key) << error.what();
    }
  }
}

/// One of many blocks: in every:K with K > 1 most keep what they make.
TEST(Probe, ABlockRecomputesAsMostOfItsRunDo) {
  for (const auto& [of_run, of_block] : std::vector<std::pair<std::string, std::string>>{
           {"none", "none"}, {"block", "block"}, {"every:1", "block"}, {"every:2", "none"}}) {
    strait::Run run = llama_run();
    run.train.recompute = of_run;
    const BlockCase block = block_of_run(run, 4);
    EXPECT_EQ(block.run.train.recompute, of_block);
    EXPECT_GT(ModelWork(block, Dtype::kFloat32, 1).flops(), 0);
  }
}

TEST(Probe, RefusesNegativeRanksAndFewRuns) {
  EXPECT_THROW(probe({.ranks = -1}), UserError);
  ProbeOptions options = small_probe(1);
  options.runs = 3;
  EXPECT_THROW(probe(options), UserError);
}

ProbeResult sample_result() {
  return {.ranks = 4,
          .threads_per_rank = 2,
          .cores = 8,
          .ranks_per_machine = 4,
          .cores_per_machine = 8,
          .fp32_flops_per_second = 1.25e11,
          .fp64_flops_per_second = 5.5e10,
          .bf16_flops_per_second = {},
          .fp32_model_flops_per_second = 1.1e11,
          .fp32_attention_flops_per_second = 8.1e10,
          .codec_bytes_per_second = 7.5e9,
          .memcpy_bytes_per_second = 1.3e10,
          .streaming_bytes_per_second = 2.2e10,
          .memory_bytes = 17179869184,
          .transport_bytes_per_second = 6.4e9,
          .transport_latency_seconds = 1.5e-6,
          .block = {},
          .levels = {}};
}

TEST(ClusterFile, IsReadBackAsMeasured) {
  for (const bool has_bf16 : {false, true}) {
    ProbeResult result = sample_result();
    if (has_bf16) result.bf16_flops_per_second = 4.4e11;
    const std::string text = render_cluster_file(result);
    const Cluster cluster = parse_cluster_file(text, "cluster.toml", 4);
    EXPECT_EQ(cluster.flops_per_second_fp32, 1.25e11);
    EXPECT_EQ(cluster.flops_per_second_fp64, 5.5e10);
    if (has_bf16) {
      EXPECT_EQ(cluster.flops_per_second_bf16, 4.4e11);
    }
    EXPECT_EQ(text.find("bf16") != std::string::npos, has_bf16);
    EXPECT_EQ(cluster.model_flops_per_second(Dtype::kFloat32), 1.1e11);
    EXPECT_EQ(cluster.model_flops_per_second(Dtype::kFloat64), 5.5e10);  // as products
    EXPECT_EQ(cluster.attention_flops_per_second(Dtype::kFloat32), 8.1e10);
    EXPECT_EQ(cluster.attention_flops_per_second(Dtype::kFloat64), 5.5e10);  // as products
    EXPECT_EQ(cluster.codec_bytes_per_second, 7.5e9);
    EXPECT_EQ(cluster.memory_bytes_per_second, 2.2e10);
    EXPECT_EQ(cluster.memory_bytes, 17179869184);
    EXPECT_EQ(cluster.cores_per_rank, 2);
    EXPECT_TRUE(cluster.shares_cores);
    EXPECT_EQ(cluster.alone_speed(), 1);
    result.cores_per_machine = 4;  // for eight threads
    EXPECT_EQ(probe_cluster(result).alone_speed(), 2);
    ASSERT_EQ(cluster.levels.size(), 1u);
    EXPECT_EQ(cluster.levels[0].name, "world");
    EXPECT_EQ(cluster.levels[0].size, 4);
    EXPECT_NEAR(cluster.levels[0].bytes_per_second, 6.4e9, 1.0);
    EXPECT_NEAR(cluster.levels[0].latency_seconds, 1.5e-6, 1e-12);
  }
}

// The outermost level takes the rest: the file serves other numbers of ranks too.
TEST(ClusterFile, ServesOtherWorlds) {
  EXPECT_EQ(parse_cluster_file(render_cluster_file(sample_result()), "cluster.toml", 6).ranks, 6);
}

TEST(ClusterFile, AWorldOfOneIsLegal) {
  const ProbeResult result = probe(small_probe(1));
  EXPECT_EQ(parse_cluster_file(render_cluster_file(result), "cluster.toml", 1).ranks, 1);
}

#ifdef STRAIT_MPI
/// "name size GB/s" of each.
std::string text_of(const std::vector<Level>& levels) {
  std::string text;
  for (const Level& level : levels)
    text += fmt::format("{} {} {}, ", level.name, level.size, level.bytes_per_second / 1e9);
  return text;
}

TEST(WorthTelling, LevelsInsideAHostThatAreFasterThanTheOneAround) {
  // Into a rank, a cache of 2, a socket of 4, a host of 8.
  const std::vector<Level> levels = {
      {"l3", 2, 8e9}, {"numa", 2, 12e9}, {"node", 2, 12e9}, {"world", 3, 1e9}};
  EXPECT_EQ(text_of(worth_telling(levels, 2)), text_of(levels));  // into a rank: 8, 6, 3 GB/s
  std::vector<Level> slow_cache = levels;
  slow_cache[0].bytes_per_second = 7e9;
  const std::vector<Level> without_cache = {{"numa", 4, 6e9}, {"node", 2, 12e9}, {"world", 3, 1e9}};
  EXPECT_EQ(text_of(worth_telling(slow_cache, 2)), text_of(without_cache));
  const std::vector<Level> alike = {
      {"l3", 2, 3e9}, {"numa", 2, 6e9}, {"node", 2, 12e9}, {"world", 3, 1e9}};
  const std::vector<Level> hosts = {{"node", 8, 3e9}, {"world", 3, 1e9}};
  EXPECT_EQ(text_of(worth_telling(alike, 2)), text_of(hosts));
  EXPECT_EQ(text_of(worth_telling(hosts, 0)), text_of(hosts));
}
#endif

}  // namespace
}  // namespace strait::measure
