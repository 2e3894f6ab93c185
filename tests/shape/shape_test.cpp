#include "strait/shape/shape.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/shape/block_layout.h"

namespace strait {
namespace {

ModelShape preset_shape(const std::string& name, int64_t vocabulary) {
  return model_shape(model_preset(name), vocabulary);
}

TEST(Shape, PublishedParameterCounts) {
  // Radford et al. 2019 with 50257 tokens: the published checkpoints' counts, tied head counted
  // once.
  EXPECT_EQ(preset_shape("gpt2-124m", 50257).parameters(), 124439808);
  EXPECT_EQ(preset_shape("gpt2-350m", 50257).parameters(), 354823168);
  EXPECT_EQ(preset_shape("gpt2-774m", 50257).parameters(), 774030080);
  EXPECT_EQ(preset_shape("gpt2-1558m", 50257).parameters(), 1557611200);
  // 4 layers of 12 C^2 + 2 C, embeddings (65 + 64) C, final norm C.
  EXPECT_EQ(preset_shape("nano-char", 65).parameters(),
            4 * (12 * 128 * 128 + 2 * 128) + 129 * 128 + 128);
}

TEST(Shape, PublishedParameterCountsOfLlama) {
  // The counts of the published checkpoints.
  EXPECT_EQ(preset_shape("llama-2-7b", 32000).parameters(), 6738415616);
  EXPECT_EQ(preset_shape("llama-2-13b", 32000).parameters(), 13015864320);
  EXPECT_EQ(preset_shape("llama-2-70b", 32000).parameters(), 68976648192);
  EXPECT_EQ(preset_shape("llama-3-8b", 128256).parameters(), 8030261248);
  EXPECT_EQ(preset_shape("llama-3.1-70b", 128256).parameters(), 70553706496);
  EXPECT_EQ(preset_shape("llama-3.1-405b", 128256).parameters(), 405853388800);
  EXPECT_EQ(preset_shape("llama-3.2-1b", 128256).parameters(), 1235814400);
  EXPECT_EQ(preset_shape("llama-3.2-3b", 128256).parameters(), 3212749824);
  // 12 layers of 12 C^2 + 2 C as GPT-2 124M without biases and positions.
  EXPECT_EQ(preset_shape("llama-124m", 50257).parameters(),
            12 * (12 * 768 * 768 + 2 * 768) + 50257 * 768 + 768);
}

/// Sizes of the launch scripts (specs: tensor4d 5.c); the names tell billions of parameters.
TEST(Shape, SizesOfAxonn) {
  struct Size {
    int64_t billions, layers, width, heads;
  };
  const Size sizes[] = {{5, 24, 4096, 32},    {10, 32, 5120, 40},    {20, 32, 7168, 56},
                        {40, 38, 9216, 72},   {50, 48, 9216, 72},    {60, 56, 9216, 72},
                        {80, 42, 12288, 96},  {100, 53, 12288, 96},  {160, 84, 12288, 96},
                        {175, 96, 12288, 96}, {320, 96, 16384, 128}, {640, 192, 16384, 128}};
  for (const Size& size : sizes) {
    const ModelShape shape = preset_shape(fmt::format("axonn-{}b", size.billions), 51200);
    EXPECT_EQ(shape.options.layers, size.layers) << size.billions;
    EXPECT_EQ(shape.options.width, size.width) << size.billions;
    EXPECT_EQ(shape.options.heads, size.heads) << size.billions;
    EXPECT_EQ(shape.options.context, 2048) << size.billions;
    const auto named = 1e9 * static_cast<double>(size.billions);
    EXPECT_NEAR(static_cast<double>(shape.parameters()), named, 0.05 * named) << size.billions;
  }
}

TEST(Shape, PublishedParameterCountsOfOtherFamilies) {
  // The counts of the published checkpoints.
  EXPECT_EQ(preset_shape("smollm2-135m", 49152).parameters(), 134515008);
  EXPECT_EQ(preset_shape("smollm2-360m", 49152).parameters(), 361821120);
  EXPECT_EQ(preset_shape("smollm2-1.7b", 49152).parameters(), 1711376384);
  EXPECT_EQ(preset_shape("mistral-7b", 32000).parameters(), 7241732096);
  EXPECT_EQ(preset_shape("qwen2.5-0.5b", 151936).parameters(), 494032768);
  EXPECT_EQ(preset_shape("qwen2.5-1.5b", 151936).parameters(), 1543714304);
  EXPECT_EQ(preset_shape("qwen2.5-7b", 152064).parameters(), 7615616512);
  EXPECT_EQ(preset_shape("qwen3-0.6b", 151936).parameters(), 596049920);
  EXPECT_EQ(preset_shape("qwen3-1.7b", 151936).parameters(), 1720574976);
  EXPECT_EQ(preset_shape("qwen3-8b", 151936).parameters(), 8190735360);
  EXPECT_EQ(preset_shape("olmo2-1b", 100352).parameters(), 1484916736);
  EXPECT_EQ(preset_shape("olmo2-7b", 100352).parameters(), 7298617344);
  EXPECT_EQ(preset_shape("gemma-2-2b", 256000).parameters(), 2614341888);
  EXPECT_EQ(preset_shape("gemma-2-9b", 256000).parameters(), 9241705984);
  EXPECT_EQ(preset_shape("gemma-2-27b", 256000).parameters(), 27227128320);
  EXPECT_EQ(preset_shape("gemma-3-270m", 262144).parameters(), 268098176);
  EXPECT_EQ(preset_shape("gemma-3-1b", 262144).parameters(), 999885952);
  // Of what is published with pictures: SigLIP has 416866032, and what projects to the width w
  // 1152 (w + 1).
  const auto text = [](int64_t all, int64_t width) { return all - 416866032 - 1152 * (width + 1); };
  EXPECT_EQ(preset_shape("gemma-3-4b", 262208).parameters(), text(4300079472, 2560));
  EXPECT_EQ(preset_shape("gemma-3-12b", 262208).parameters(), text(12187325040, 3840));
  EXPECT_EQ(preset_shape("gemma-3-27b", 262208).parameters(), text(27432406640, 5376));
}

TEST(Shape, EverySixthBlockOfGemmaAttendsAllTokens) {
  const ModelShape model = preset_shape("gemma-3-4b", 262208);
  for (int64_t block = 1; block <= 34; ++block) {
    const LayerForm form = layer_form(model, block);
    const bool whole = block == 6 || block == 12 || block == 18 || block == 24 || block == 30;
    EXPECT_EQ(form.window, whole ? 0 : 1024) << block;
    EXPECT_EQ(form.rope.theta, whole ? 1e6 : 1e4) << block;
    EXPECT_EQ(form.rope.factor, whole ? 8.0 : 1.0) << block;
    EXPECT_EQ(model.blocks[static_cast<size_t>(block)].signature, model.blocks[1].signature);
  }
  // 29 blocks of a window of 1024, 5 of all 4096 tokens.
  EXPECT_DOUBLE_EQ(attended_tokens(4096, model.options),
                   (29 * 1024 * (2.0 - 0.25) + 5 * 4096.0) / 34);
}

/// All of them turn alike, whatever their window.
TEST(Shape, EverySecondBlockOfGemma2AttendsAllTokens) {
  const ModelShape model = preset_shape("gemma-2-2b", 256000);
  EXPECT_EQ(model.options.score_cap, 50.0);
  EXPECT_EQ(model.options.logit_cap, 30.0);
  for (int64_t block = 1; block <= 26; ++block) {
    const LayerForm form = layer_form(model, block);
    EXPECT_EQ(form.window, block % 2 == 0 ? 0 : 4096) << block;
    EXPECT_EQ(form.rope.theta, 1e4) << block;
  }
}

TEST(Shape, WindowsAndHeadWidthsCount) {
  ShapeOptions options{2, 4, 2, 16, 6, 10, false, 0.0, false};
  options.head_width = 6;
  options.window = 4;
  const ModelShape model = model_shape({"", "mistral", options}, 11);
  EXPECT_THAT(model.units[1].parameter("blocks.0.attention.qkv.weight").dims,
              testing::ElementsAre(48, 16));
  EXPECT_THAT(model.units[1].parameter("blocks.0.attention.output.weight").dims,
              testing::ElementsAre(16, 24));
  EXPECT_EQ(cache_bytes(model, 3, 32, Dtype::kFloat32), 2 * 3 * 32 * 12 * 4);
  // Of 10 queries the first 4 attend 2 on average, the other 6 attend 4: 32 in halves of 6.4.
  EXPECT_DOUBLE_EQ(attended_tokens(10, 4), 6.4);
  EXPECT_DOUBLE_EQ(attended_tokens(10, 10), 10.0);
  EXPECT_DOUBLE_EQ(model_flops_per_token(model, 10),
                   6.0 * (2 * 16 * (48 + 24 + 12 + 6) + 176) + 6.0 * 2 * 6.4 * 24);
}

TEST(Shape, VocabulariesMayBePadded) {
  ModelOptions model = model_preset("gpt2-124m");
  model.shape.vocabulary = 50304;  // a multiple of 128
  const ModelShape padded = model_shape(model, 50257);
  EXPECT_EQ(padded.vocabulary, 50304);
  EXPECT_EQ(padded.parameters(), 124439808 + 47 * 768);
  model.shape.vocabulary = 50256;
  EXPECT_THROW(model_shape(model, 50257), UserError);
}

TEST(Shape, LlamaBlock) {
  const ModelShape model = llama_shape({2, 4, 2, 16, 6, 5, false, 0.0, false}, 11);
  const UnitShape& unit = model.units[1];
  EXPECT_THAT(unit.parameter("blocks.0.attention.qkv.weight").dims, testing::ElementsAre(32, 16));
  EXPECT_THAT(unit.parameter("blocks.0.mlp.gate_up.weight").dims, testing::ElementsAre(12, 16));
  EXPECT_THAT(unit.parameter("blocks.0.mlp.down.weight").dims, testing::ElementsAre(16, 6));
  EXPECT_EQ(unit.parameters.size(), 6u);
  EXPECT_EQ(model.units[0].parameters.size(), 1u);
  const ModelShape biased = llama_shape({2, 4, 2, 16, 6, 5, true, 0.0, true}, 11);
  EXPECT_EQ(biased.units[1].parameters.size(), 10u) << "biases of linear layers alone";
  EXPECT_EQ(biased.units[0].parameters.size(), 2u);
  // qkv 16 + 2 * 8, attention 16, residual 16, gate and up 12, rstd of two norms, a log-sum-exp per
  // head.
  EXPECT_EQ(block_sizes(model, 1, 8, 16, Dtype::kFloat32).saved_bytes,
            128 * (32 + 16 + 16 + 12 + 2 + 4) * 4);
  EXPECT_EQ(cache_bytes(model, 3, 32, Dtype::kFloat32), 2 * 3 * 32 * 8 * 4);
  // 6 (2 (16 (32 + 16 + 12 + 6)) + 11 * 16) + 6 * 2 * 5 * 16.
  EXPECT_DOUBLE_EQ(model_flops_per_token(model, 5), 6.0 * (2 * 16 * 66 + 176) + 960.0);
}

TEST(Shape, EveryPresetBuilds) {
  for (const std::string& name : model_preset_names()) {
    const ModelOptions options = model_preset(name);
    EXPECT_EQ(options.preset, name);
    const ModelShape model = model_shape(options, 50257);
    EXPECT_EQ(model.blocks.size(),
              static_cast<size_t>(options.shape.layers) + (model.modules ? 0 : 2))
        << name;
  }
}

TEST(Shape, ParametersTileTheUnitAndSectionsSplitDecay) {
  for (const bool bias : {false, true}) {
    for (const bool tied : {false, true}) {
      ShapeOptions options{3, 2, 2, 10, 7, 5, bias, 0.0, tied};
      const ModelShape model = gpt2_shape(options, 11);
      EXPECT_EQ(model.units.size(), tied ? 4u : 5u);
      for (const UnitShape& unit : model.units) {
        int64_t next = 0;
        for (const ParameterShape& parameter : unit.parameters) {
          EXPECT_EQ(parameter.offset, next) << parameter.name;
          next += parameter.elements();
          EXPECT_EQ(parameter.weight_decay, parameter.dims.size() == 2) << parameter.name;
        }
        EXPECT_EQ(unit.elements, next);
        int64_t covered = 0;
        for (const Section& section : unit.sections) {
          EXPECT_EQ(section.begin, covered);
          covered = section.end;
          for (const ParameterShape& parameter : unit.parameters) {
            if (parameter.offset >= section.begin && parameter.offset < section.end) {
              EXPECT_EQ(parameter.weight_decay, section.weight_decay) << parameter.name;
            }
          }
        }
        EXPECT_EQ(covered, unit.elements);
      }
    }
  }
}

TEST(Shape, NamesAndInitialValues) {
  const ModelShape model = gpt2_shape({8, 2, 2, 4, 6, 5, true, 0.0, true}, 11);
  const UnitShape& unit = model.units[3];
  EXPECT_EQ(unit.name, "blocks.2");
  EXPECT_THAT(unit.parameter("blocks.2.attention.qkv.weight").dims, testing::ElementsAre(12, 4));
  EXPECT_THAT(unit.parameter("blocks.2.mlp.up.weight").dims, testing::ElementsAre(6, 4));
  EXPECT_THAT(unit.parameter("blocks.2.mlp.down.weight").dims, testing::ElementsAre(4, 6));
  EXPECT_DOUBLE_EQ(unit.parameter("blocks.2.attention.qkv.weight").standard_deviation, 0.02);
  EXPECT_DOUBLE_EQ(unit.parameter("blocks.2.attention.output.weight").standard_deviation, 0.005);
  EXPECT_DOUBLE_EQ(unit.parameter("blocks.2.mlp.down.weight").standard_deviation, 0.005);
  EXPECT_EQ(unit.parameter("blocks.2.mlp_norm.weight").initial, Initial::kOnes);
  EXPECT_EQ(unit.parameter("blocks.2.mlp_norm.bias").initial, Initial::kZeros);
  EXPECT_THROW(unit.parameter("blocks.2.mlp.upp.weight"), InternalError);
  EXPECT_EQ(model.blocks.back().unit, 0);
  EXPECT_EQ(model.units[0].parameter("head.norm.weight").elements(), 4);
}

TEST(Shape, EqualBlocksShareASignature) {
  const ModelShape model = preset_shape("gpt2-124m", 100);
  for (size_t block = 2; block + 1 < model.blocks.size(); ++block) {
    EXPECT_EQ(model.blocks[block].signature, model.blocks[1].signature);
    EXPECT_EQ(model.units[model.blocks[block].unit].elements, model.units[1].elements);
  }
  EXPECT_NE(model.blocks.front().signature, model.blocks[1].signature);
}

TEST(Shape, FlopsOfBlocksAgreeWithTheModelFormula) {
  for (const int64_t tokens : {1, 7, 64}) {
    const ModelShape model = gpt2_shape({3, 2, 2, 10, 7, 64, true, 0.0, true}, 11);
    double flops = 0;
    for (size_t block = 0; block < model.blocks.size(); ++block) {
      const BlockSizes sizes =
          block_sizes(model, static_cast<int64_t>(block), 5, tokens, Dtype::kFloat32);
      flops += sizes.forward_flops + sizes.backward_flops;
    }
    EXPECT_DOUBLE_EQ(flops,
                     model_flops_per_token(model, tokens) * 5.0 * static_cast<double>(tokens));
  }
  // 124M with context 1024: 6 (12 * 12 * 768^2 + 50257 * 768) + 6 * 12 * 1024 * 768.
  EXPECT_DOUBLE_EQ(model_flops_per_token(preset_shape("gpt2-124m", 50257), 1024),
                   6.0 * (84934656.0 + 38597376.0) + 56623104.0);
}

TEST(Shape, SavedBytesHoldNoSquareMatrix) {
  // Doubling the tokens doubles what is kept: nothing in it is tokens x tokens.
  const ModelShape model = gpt2_shape({1, 4, 4, 64, 256, 4096, true, 0.0, true}, 100);
  const auto bytes = [&](int64_t tokens) {
    return block_sizes(model, 1, 2, tokens, Dtype::kFloat32).saved_bytes;
  };
  EXPECT_EQ(bytes(2048), 2 * bytes(1024));
  // qkv 3C, attention C, residual C, up F, four statistics and a log-sum-exp per head.
  EXPECT_EQ(bytes(1024), 2 * 1024 * (5 * 64 + 256 + 4 + 4) * 4);
}

TEST(Shape, ElementSizeScalesBytes) {
  const ModelShape model = gpt2_shape({1, 2, 2, 16, 64, 32, true, 0.1, false}, 48);
  for (int64_t block = 0; block < 3; ++block) {
    const BlockSizes single = block_sizes(model, block, 3, 5, Dtype::kFloat32);
    const BlockSizes twice = block_sizes(model, block, 3, 5, Dtype::kFloat64);
    EXPECT_EQ(twice.saved_bytes, 2 * single.saved_bytes);
    EXPECT_EQ(twice.forward_workspace_bytes, 2 * single.forward_workspace_bytes);
    EXPECT_EQ(twice.backward_workspace_bytes, 2 * single.backward_workspace_bytes);
    EXPECT_EQ(twice.output_bytes, 2 * single.output_bytes);
  }
  // bf16: half, but for what stays fp32 (statistics, logits, sums of attention's backward).
  const BlockSizes half = block_sizes(model, 1, 4, 8, Dtype::kBfloat16);
  const BlockSizes full = block_sizes(model, 1, 4, 8, Dtype::kFloat32);
  const int64_t statistics = 4 * (4 * 32 + 2 * 32);  // of 32 rows; of 2 heads
  EXPECT_EQ(half.saved_bytes - statistics, (full.saved_bytes - statistics) / 2);
  EXPECT_EQ(half.input_bytes, full.input_bytes / 2);
  EXPECT_EQ(cache_bytes(model, 3, 32, Dtype::kFloat32), 2 * 3 * 32 * 16 * 4);
}

TEST(Shape, HeadChunksCoverRowsWithinTheTarget) {
  for (const int64_t vocabulary : {1, 65, 50257, 1000000}) {
    for (const int64_t rows : {1, 2, 63, 64, 65, 256, 1000, 4096}) {
      const int64_t chunk = head_chunk_rows(vocabulary, rows);
      EXPECT_GE(chunk, std::min<int64_t>(rows, 33)) << vocabulary << " " << rows;
      EXPECT_LE(chunk, rows);
      const int64_t bytes = chunk * vocabulary * 4;
      EXPECT_TRUE(chunk <= 64 || bytes <= (chunk <= 512 ? 256 : 64) << 20) << vocabulary;
    }
  }
  EXPECT_EQ(head_chunk_rows(50257, 1024), 512);
  EXPECT_EQ(head_chunk_rows(128256, 4096), 512);
  EXPECT_EQ(head_chunk_rows(262144, 1024), 256);
}

TEST(Shape, RefusesWhatCannotBeBuilt) {
  const ShapeOptions good{2, 2, 2, 8, 32, 16, true, 0.0, true};
  EXPECT_NO_THROW(validate_shape(good, 10));
  const auto key = [&](auto change) -> std::string {
    ShapeOptions options = good;
    change(options);
    try {
      gpt2_shape(options, 10);
    } catch (const UserError& error) {
      return *error.place().key;
    }
    return "accepted";
  };
  EXPECT_EQ(key([](ShapeOptions& o) { o.layers = 0; }), "model.shape.layers");
  EXPECT_EQ(key([](ShapeOptions& o) { o.heads = -1; }), "model.shape.heads");
  EXPECT_EQ(key([](ShapeOptions& o) { o.kv_heads = 1; }), "model.shape.kv_heads");
  EXPECT_EQ(key([](ShapeOptions& o) { o.width = 9; }), "model.shape.width");
  EXPECT_EQ(key([](ShapeOptions& o) { o.ffn_width = 0; }), "model.shape.ffn_width");
  EXPECT_EQ(key([](ShapeOptions& o) { o.context = 0; }), "model.shape.context");
  EXPECT_EQ(key([](ShapeOptions& o) { o.dropout = 1.0; }), "model.shape.dropout");
  const auto llama_key = [&](auto change) -> std::string {
    ShapeOptions options{2, 4, 2, 16, 32, 16, false, 0.0, true};
    change(options);
    try {
      llama_shape(options, 10);
    } catch (const UserError& error) {
      return *error.place().key;
    }
    return "accepted";
  };
  EXPECT_EQ(llama_key([](ShapeOptions&) {}), "accepted");
  EXPECT_EQ(llama_key([](ShapeOptions& o) { o.kv_heads = 3; }), "model.shape.kv_heads");
  EXPECT_EQ(llama_key([](ShapeOptions& o) { o.kv_heads = 0; }), "model.shape.kv_heads");
  EXPECT_EQ(llama_key([](ShapeOptions& o) { o.width = 12; }), "model.shape.width");
  EXPECT_EQ(llama_key([](ShapeOptions& o) { o.norm_eps = 0; }), "model.shape.norm_eps");
  EXPECT_EQ(llama_key([](ShapeOptions& o) { o.rope.theta = 0; }), "model.rope.theta");
  EXPECT_EQ(llama_key([](ShapeOptions& o) { o.rope.factor = 0.5; }), "model.rope.factor");
  EXPECT_EQ(llama_key([](ShapeOptions& o) { o.rope.low_frequency_factor = 9; }),
            "model.rope.high_frequency_factor");
  EXPECT_EQ(llama_key([](ShapeOptions& o) { o.rope.original_context = 0; }),
            "model.rope.original_context");
  EXPECT_THROW(gpt2_shape(good, 0), UserError);
  EXPECT_THROW(validate_shape(good, 10, "gpt3"), UserError);
}

TEST(Shape, UnknownPresetNamesTheNearest) {
  try {
    model_preset("gpt2-124");
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("\"gpt2-124m\""));
    EXPECT_EQ(error.place().key, "model.preset");
  }
}

TEST(Shape, LayoutPartsAreAlignedAndDisjoint) {
  const BlockExtent extent{15, 10, 7, 2, 2, 5, {}};
  const SavedLayout layout = saved_layout(extent);
  EXPECT_EQ(layout.attention_mean, 0);
  EXPECT_EQ(layout.log_sum_exp, 64);
  EXPECT_EQ(layout.qkv, 96);
  EXPECT_EQ(layout.attention, 96 + 464);
  EXPECT_EQ(layout.middle, 96 + 464 + 160);
  EXPECT_EQ(layout.up, 96 + 464 + 320);
  EXPECT_EQ(layout.elements, 96 + 464 + 320 + 112);
}

}  // namespace
}  // namespace strait
