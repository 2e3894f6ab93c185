// mesh.axes.x: what divides, and what is refused with file, line, key and the nearest choice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/config/parse.h"
#include "strait/config/validate.h"

namespace strait {
namespace {

/// The error about mesh.axes.x, which stands on line 1.
std::string refusal(const std::string& text, int64_t ranks) {
  try {
    validate_run(parse_run(text, "run.toml"), ranks);
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "mesh.axes.x") << error.what();
    EXPECT_EQ(error.place().file, "run.toml");
    EXPECT_EQ(error.place().line, 1);
    return error.what();
  }
  return "accepted";
}

TEST(SharedBlocks, WhatDividesHeadsAndChannelsIsAccepted) {
  for (const char* x : {"1", "2", "3", "4", "6", "12"})
    EXPECT_EQ(refusal(std::string("mesh.axes.x = ") + x, 12), "accepted");
}

TEST(SharedBlocks, WhatDoesNotIsRefusedWithTheNearestChoice) {
  using testing::HasSubstr;
  const std::string nine =
      "\nmodel.shape = { heads = 9, kv_heads = 9, width = 72, ffn_width = 288 }";
  EXPECT_THAT(refusal("mesh.axes.x = 6" + nine, 12),
              HasSubstr("does not divide model.shape.heads = 9; nearest that divides heads, "
                        "kv_heads and ffn_width on the same ranks: 3"));
  EXPECT_THAT(refusal("mesh.axes.x = 0", 2), HasSubstr("the nearest valid value is 1"));
}

TEST(SharedBlocks, ADeviceIsRefused) {
  EXPECT_THAT(refusal("mesh.axes.x = 2\nruntime.device = \"cuda\"", 2),
              testing::HasSubstr("the nearest valid value is 1, or runtime.device = \"cpu\""));
}

}  // namespace
}  // namespace strait
