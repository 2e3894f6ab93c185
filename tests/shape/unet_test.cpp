#include "strait/shape/unet.h"

#include <gtest/gtest.h>

#include <map>

#include "strait/base/errors.h"
#include "strait/shape/shape.h"

namespace strait {
namespace {

/// The authors' network for CIFAR-10 has 35,746,307 parameters, with attention at a height of 16;
/// the preset has it at 8 and 4 as well, behind two blocks going down and three going up each.
TEST(Unet, HasTheParametersOfHoEtAl) {
  const ModelShape shape = model_shape(model_preset("unet-cifar10"), kPixelLevels);
  const int64_t attention = 2 * 256 + 4 * (256 * 256 + 256);
  EXPECT_EQ(shape.parameters(), 35'746'307 + 2 * (2 + 3) * attention);
  EXPECT_EQ(shape.blocks.size(), 1u + 8 + 2 + 12 + 1);
}

/// What one block leaves the next one takes; every skip is taken once, by a block of its height.
TEST(Unet, SkipsPassFromWhereTheyAreMadeToWhereTheyAreTaken) {
  for (const auto& [channels, image, residual_blocks] :
       std::vector<std::tuple<std::vector<int64_t>, int64_t, int64_t>>{
           {{8}, 3, 1}, {{8, 12}, 6, 1}, {{8, 16, 24}, 12, 2}, {{4, 4, 4, 4}, 16, 3}}) {
    UnetOptions options;
    options.channels = channels;
    options.image = image;
    options.residual_blocks = residual_blocks;
    const auto chain = unet_chain(options);
    const std::vector<UnetBlock>& blocks = chain->unet->blocks;
    ASSERT_EQ(blocks.size(), chain->blocks.size());
    for (size_t i = 0; i + 1 < blocks.size(); ++i) {
      EXPECT_EQ(blocks[i].leaving, blocks[i + 1].entering) << i;
      int64_t elements = blocks[i].leaves_time ? chain->unet->time_width() : 0;
      for (const UnetMap& map : blocks[i].leaving) elements += map.elements();
      EXPECT_EQ(chain->output_elements(static_cast<int64_t>(i)), elements);
      EXPECT_EQ(blocks[i].leaves_time, blocks[i + 1].takes_time);
      if (blocks[i].step != UnetStep::kUp) continue;
      const auto& maps = blocks[i].entering;
      EXPECT_EQ(maps.back().height, maps[maps.size() - 2].height);
    }
    EXPECT_EQ(blocks.back().entering, (std::vector<UnetMap>{{channels.front(), image}}));
  }
}

TEST(Unet, OperationsAreThoseOfItsProducts) {
  UnetOptions options;
  options.channels = {4, 6};
  options.image = 4;
  options.attention_from = 2;
  options.colors = 1;
  const auto chain = unet_chain(options);
  std::map<std::string, double> flops;
  for (const ModuleBlock& block : chain->blocks) flops[block.name] = block.forward_flops;
  EXPECT_EQ(flops["enter"], 2 * (9 * 1 * 4 * 16 + 4 * 16 + 16 * 16));
  EXPECT_EQ(flops["down.0.0"], 2 * (2 * 9 * 4 * 4 * 16 + 16 * 4 + 9 * 4 * 4 * 4));
  EXPECT_EQ(flops["down.1.0"],
            2 * (9 * 4 * 6 * 4 + 16 * 6 + 9 * 6 * 6 * 4 + 4 * 6 * 4 +  // residual
                 4 * 6 * 6 * 4 + 2 * 4 * 4 * 6));                      // attention
  EXPECT_EQ(flops["leave"], 2 * 9 * 4 * 1 * 16);
}

TEST(Unet, GroupsDivideChannels) {
  for (const auto& [channels, groups] :
       std::map<int64_t, int64_t>{{128, 32}, {384, 32}, {32, 16}, {6, 3}, {5, 1}, {2, 1}})
    EXPECT_EQ(unet_groups(channels), groups) << channels;
}

TEST(Unet, RefusesSizesThatItCannotHave) {
  const auto expect_refused = [](auto change, const std::string& key, const std::string& text) {
    UnetOptions options;
    change(options);
    try {
      unet_chain(options);
      FAIL() << "accepted " << key;
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().key.value_or(""), key) << error.what();
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  expect_refused([](auto& o) { o.image = 30; }, "model.unet.image", "nearest valid value is 32");
  expect_refused(
      [](auto& o) {
        o.channels = {8, 8, 8, 8, 8}, o.image = 17;
      },
      "model.unet.image", "nearest valid value is 16");
  expect_refused(
      [](auto& o) {
        o.channels = {8, 8, 8, 8, 8}, o.image = 3;
      },
      "model.unet.image", "nearest valid value is 16");
  expect_refused(
      [](auto& o) {
        o.channels = {8, 8}, o.colors = 1, o.image = 3200;
      },
      "model.unet.image", "nearest valid value is 3162");
  expect_refused([](auto& o) { o.channels = {}; }, "model.unet.channels", "valid number is 1");
  expect_refused([](auto& o) { o.channels = {7, 8}; }, "model.unet.channels", "value is 8");
  expect_refused([](auto& o) { o.channels = {8, 1}; }, "model.unet.channels", "value is 2");
  expect_refused([](auto& o) { o.residual_blocks = 0; }, "model.unet.residual_blocks", "is 1");
  expect_refused([](auto& o) { o.colors = -1; }, "model.unet.colors", "is 1");
  expect_refused([](auto& o) { o.diffusion_steps = 0; }, "model.unet.diffusion_steps", "is 1");
}

}  // namespace
}  // namespace strait
