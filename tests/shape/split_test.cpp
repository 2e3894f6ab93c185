#include "strait/shape/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"

namespace strait {
namespace {

ModelShape llama() { return llama_shape({2, 8, 4, 32, 12, 5, true, 0.0, false}, 12); }
ModelShape gpt2() { return gpt2_shape({2, 4, 4, 16, 24, 5, true, 0.0, true}, 12); }

TEST(Split, PartsAreHeadsAndChannels) {
  const UnitShape unit = llama().units[1];  // 8 heads of 4, 4 key/value heads
  const auto split = [&](const char* name) {
    return unit.parameter(std::string("blocks.0.") + name).split.x;
  };
  EXPECT_EQ(split("attention.qkv.weight").dim, 0);
  EXPECT_THAT(split("attention.qkv.weight").parts, testing::ElementsAre(32, 16, 16));
  EXPECT_THAT(split("attention.qkv.bias").parts, testing::ElementsAre(32, 16, 16));
  EXPECT_EQ(split("attention.output.weight").dim, 1);
  EXPECT_THAT(split("attention.output.weight").parts, testing::ElementsAre(32));
  EXPECT_THAT(split("mlp.gate_up.weight").parts, testing::ElementsAre(12, 12));
  EXPECT_EQ(split("mlp.down.weight").dim, 1);
  for (const char* shared : {"attention.output.bias", "mlp.down.bias", "attention_norm.weight"})
    EXPECT_EQ(split(shared).dim, -1) << shared;
  const UnitShape plain = gpt2().units[1];
  EXPECT_THAT(plain.parameter("blocks.0.mlp.up.bias").split.x.parts, testing::ElementsAre(24));
}

TEST(Split, LocalShapeIsAnOrdinaryModel) {
  const ModelShape model = gpt2(), local = local_shape(model, 2);
  EXPECT_EQ(local.x, 2);
  EXPECT_EQ(local.options.heads, 4);
  EXPECT_NE(local.blocks[1].signature, model.blocks[1].signature);
  EXPECT_NE(local.blocks[0].signature, model.blocks[0].signature);
  EXPECT_THAT(local.units[0].parameter("embedding.token.weight").dims, testing::ElementsAre(6, 16));
  EXPECT_THAT(local.units[0].parameter("embedding.position.weight").dims,
              testing::ElementsAre(5, 16));
  const UnitShape& unit = local.units[1];
  EXPECT_THAT(unit.parameter("blocks.0.attention.qkv.weight").dims, testing::ElementsAre(24, 16));
  EXPECT_THAT(unit.parameter("blocks.0.attention.output.weight").dims, testing::ElementsAre(16, 8));
  EXPECT_THAT(unit.parameter("blocks.0.mlp.down.bias").dims, testing::ElementsAre(16));
  int64_t next = 0;
  for (const ParameterShape& parameter : unit.parameters) {
    EXPECT_EQ(parameter.offset, next);
    next += parameter.elements();
  }
  EXPECT_EQ(unit.elements, next);
  // The four matrices; their biases that are cut, 24 + 12; norms and biases that are shared, 6 x
  // 16.
  ASSERT_EQ(unit.sections.size(), 3u);
  EXPECT_EQ(unit.sections[0].end, (48 * 16 + 16 * 16 + 2 * 24 * 16) / 2);
  EXPECT_TRUE(unit.sections[0].weight_decay && unit.sections[0].split_x);
  EXPECT_EQ(unit.sections[1].end - unit.sections[1].begin, 24 + 12);
  EXPECT_TRUE(!unit.sections[1].weight_decay && unit.sections[1].split_x);
  EXPECT_EQ(unit.sections[2].end - unit.sections[2].begin, 6 * 16);
  EXPECT_TRUE(!unit.sections[2].weight_decay && !unit.sections[2].split_x);
  EXPECT_TRUE(local.units[0].sections[0].split_x);
  EXPECT_FALSE(local.units[0].sections[1].split_x);
  for (const Section& section : model.units[1].sections) EXPECT_FALSE(section.split_x);
}

TEST(Split, RanksOfYHaveColumnsOfTheResidualStream) {
  const ModelShape model = gpt2(), local = local_shape(model, 2, 4);
  const UnitShape& unit = local.units[1];
  const auto dims = [&](const char* name) { return unit.parameter(name).dims; };
  EXPECT_THAT(dims("blocks.0.attention.qkv.weight"), testing::ElementsAre(24, 4));
  EXPECT_THAT(dims("blocks.0.attention.qkv.bias"), testing::ElementsAre(24));
  EXPECT_THAT(dims("blocks.0.attention.output.weight"), testing::ElementsAre(4, 8));
  EXPECT_THAT(dims("blocks.0.attention.output.bias"), testing::ElementsAre(4));
  EXPECT_THAT(dims("blocks.0.mlp_norm.weight"), testing::ElementsAre(4));
  EXPECT_THAT(local.units[0].parameter("embedding.token.weight").dims, testing::ElementsAre(6, 4));
  EXPECT_THAT(local.units[0].parameter("embedding.position.weight").dims,
              testing::ElementsAre(5, 4));
  EXPECT_THAT(local.units[0].parameter("head.norm.bias").dims, testing::ElementsAre(4));
  EXPECT_EQ(8 * block_sizes(local, 1, 3, 5, Dtype::kFloat32).backward_flops,
            4 * block_sizes(local_shape(model, 1, 4), 1, 3, 5, Dtype::kFloat32).backward_flops);
  EXPECT_EQ(4 * block_sizes(local, 1, 3, 5, Dtype::kFloat32).output_bytes,
            block_sizes(model, 1, 3, 5, Dtype::kFloat32).output_bytes);
  EXPECT_EQ(model_flops_per_token(local, 5), model_flops_per_token(model, 5));
}

TEST(Split, SizesOfTheRanksAddUp) {
  for (const ModelShape& model : {llama(), gpt2()}) {
    const BlockSizes whole = block_sizes(model, 1, 3, 5, Dtype::kFloat32);
    const ModelShape local = local_shape(model, 4);
    const BlockSizes part = block_sizes(local, 1, 3, 5, Dtype::kFloat32);
    EXPECT_EQ(4 * part.forward_flops, whole.forward_flops);
    EXPECT_EQ(4 * part.backward_flops, whole.backward_flops);
    EXPECT_EQ(part.output_bytes, whole.output_bytes);
    EXPECT_EQ(4 * cache_bytes(local, 3, 7, Dtype::kFloat32),
              cache_bytes(model, 3, 7, Dtype::kFloat32));
    EXPECT_EQ(model_flops_per_token(local, 5), model_flops_per_token(model, 5));
  }
}

TEST(Split, RefusesWhatDoesNotDivide) {
  const auto message = [](const ShapeOptions& options, int64_t x) -> std::string {
    try {
      check_grid(options, {}, 0, {x, 1});
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().key, "mesh.axes.x");
      return error.what();
    }
    return "accepted";
  };
  using testing::HasSubstr;
  const ShapeOptions options{1, 12, 4, 48, 20, 5, true, 0.0, true};
  EXPECT_EQ(message(options, 4), "accepted");
  EXPECT_THAT(message(options, 5), HasSubstr("5 does not divide model.shape.heads = 12"));
  EXPECT_THAT(message(options, 5), HasSubstr("ffn_width on the same ranks: 1"));
  EXPECT_THAT(message(options, 3), HasSubstr("3 does not divide model.shape.kv_heads = 4"));
  EXPECT_THAT(message(options, 3), HasSubstr("ffn_width on the same ranks: 1"));
  ShapeOptions odd = options;
  odd.ffn_width = 22;
  EXPECT_THAT(message(odd, 4), HasSubstr("4 does not divide model.shape.ffn_width = 22"));
  EXPECT_THAT(message(odd, 4), HasSubstr("ffn_width on the same ranks: 2"));
  EXPECT_THAT(message(options, 0), HasSubstr("ffn_width on the same ranks: 1"));
  EXPECT_THROW(local_shape(gpt2(), 3), UserError);
  const auto grid_message = [&](int64_t vocabulary, const GridSizes& grid) -> std::string {
    try {
      check_grid(options, {}, vocabulary, grid);
    } catch (const UserError& error) {
      return error.place().key.value() + ": " + error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(grid_message(12, {4, 3}), "accepted");
  EXPECT_THAT(grid_message(12, {5, 1, 20}), HasSubstr("ffn_width on the same ranks: 4"));
  EXPECT_THAT(grid_message(12, {5, 2, 20}), HasSubstr("ffn_width on the same ranks: 2"));
  EXPECT_THAT(grid_message(14, {4, 1, 12}),
              HasSubstr("valid value is 2, or model.shape.vocabulary = 16"));
  EXPECT_THAT(grid_message(13, {4, 1}),
              HasSubstr("valid value is 1, or model.shape.vocabulary = 16"));
  EXPECT_THAT(grid_message(0, {4, 5}), HasSubstr("mesh.axes.y: mesh.axes.y = 5 does not divide "
                                                 "model.shape.width = 48; the nearest valid value "
                                                 "is 1"));
  EXPECT_THROW(local_shape(local_shape(gpt2(), 2), 2), InternalError);
}

}  // namespace
}  // namespace strait
