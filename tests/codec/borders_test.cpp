// Codecs whose blocks end at borders: stretches, sizes, and the text that programs are marked with.
#include "strait/codec/borders.h"

#include <gtest/gtest.h>

#include <utility>

namespace strait::codec {
namespace {

using Stretches = std::vector<std::pair<int64_t, int64_t>>;

Stretches stretches(const BorderedCodec& codec, int64_t begin, int64_t end) {
  Stretches found;
  codec.for_each_stretch(begin, end,
                         [&](int64_t first, int64_t count) { found.emplace_back(first, count); });
  return found;
}

TEST(Borders, CutWhatLiesOnBothSides) {
  const BorderedCodec codec{parse_codec("int8/64"), {100, 130}};
  EXPECT_EQ(stretches(codec, 0, 200), (Stretches{{0, 100}, {100, 30}, {130, 70}}));
  EXPECT_EQ(stretches(codec, 100, 130), (Stretches{{100, 30}}));
  EXPECT_EQ(stretches(codec, 90, 100), (Stretches{{90, 10}}));
  EXPECT_EQ(stretches(codec, 120, 120), Stretches{});
  EXPECT_EQ(stretches({parse_codec("int8/64")}, 0, 200), (Stretches{{0, 200}}));
}

TEST(Borders, EveryStretchHasBlocksOfItsOwn) {
  const BorderedCodec codec{parse_codec("int8/64"), {100, 130}};
  const auto bytes = [&](int64_t elements) { return encoded_bytes(codec.codec, elements); };
  EXPECT_EQ(codec.encoded_bytes(0, 200), bytes(100) + bytes(30) + bytes(70));
  EXPECT_EQ(codec.metadata_bytes(0, 200), 4 * (2 + 1 + 2));
  EXPECT_EQ(metadata_bytes(codec.codec, 200), 4 * 4);
}

TEST(Borders, TextsAreReadBack) {
  const BorderedCodec codec{parse_codec("int4/128+ef"), {720, 1440}, 24};
  EXPECT_EQ(print_bordered(codec), "int4/128+ef~720,1440=24");
  const BorderedCodec read = parse_bordered(print_bordered(codec));
  EXPECT_EQ(read.codec, codec.codec);
  EXPECT_EQ(read.borders, codec.borders);
  EXPECT_EQ(read.scale_bytes, 24);
  EXPECT_EQ(without_borders(print_bordered(codec)), "int4/128+ef");
  EXPECT_EQ(print_bordered({codec.codec, {}, 24}), "int4/128+ef");
  EXPECT_TRUE(parse_bordered("int4/128+ef").borders.empty());
  EXPECT_EQ(without_borders("none"), "none");
}

}  // namespace
}  // namespace strait::codec
