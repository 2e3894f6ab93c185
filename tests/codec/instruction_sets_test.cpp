// Encoding and decoding against the plain form, bit for bit, for every instruction set this
// processor has; ranges, alignments and large results.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>

#include "tests/codec/inputs.h"
#include "tests/codec/plain.h"
// The library's instruction sets.
#include "strait/kernel/dispatch.h"
// After dispatch.h.
#include "hwy/targets.h"

namespace strait::codec {
namespace {

/// Runs `body` once per instruction set, plain code included.
template <class Body>
void on_every_target(const Body& body) {
  const int64_t own = hwy::SupportedTargets() & ~static_cast<int64_t>(HWY_DISABLED_TARGETS);
  int tried = 0;
  for (int64_t bit = 0; bit < 62; ++bit) {
    const int64_t target = int64_t{1} << bit;
    if ((own & target) == 0 && target != HWY_SCALAR) continue;
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    body();
    ++tried;
  }
  hwy::SetSupportedTargetsForTest(0);
  EXPECT_GT(tried, 1);
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& expected,
                      const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i]))
        << what << " element " << i << ": " << got[i] << ", plainly " << expected[i];
}

std::vector<Input> all_inputs(int64_t count) {
  std::vector<Input> inputs = finite_inputs(count);
  std::vector<float> dirty = normals(count, 77);
  for (size_t i = 0; i < dirty.size(); i += 23)
    dirty[i] =
        i % 2 ? std::numeric_limits<float>::quiet_NaN() : -std::numeric_limits<float>::infinity();
  inputs.push_back({"not finite", dirty});
  return inputs;
}

void expect_plain(const CodecSpec& spec, const Input& input) {
  const int64_t count = static_cast<int64_t>(input.values.size());
  const std::string what = print_codec(spec) + " " + input.name + " " + std::to_string(count);
  const std::vector<uint8_t> plainly = plain::encode(spec, input.values);
  const std::vector<uint8_t> piece = encoded_of(spec, input.values);
  for (size_t i = 0; i < piece.size(); ++i)
    ASSERT_EQ(int{piece[i]}, int{plainly[i]}) << what << " byte " << i;
  std::vector<float> expected(input.values.size());
  for (int64_t i = 0; i < count; ++i)
    expected[static_cast<size_t>(i)] = plain::decode_one(spec, plainly, count, i);
  expect_same_bits(decoded_of(spec, piece, count), expected, what);
  std::vector<float> sums = normals(count, 5);
  for (size_t i = 0; i < sums.size(); ++i) expected[i] = sums[i] + expected[i];
  decode_add(spec, piece, {sums.data(), Dtype::kFloat32, count});
  expect_same_bits(sums, expected, what + " added");
}

TEST(CodecInstructionSets, equal_the_plain_form) {
  for (const std::string& kind : lossy_kinds())
    for (const bool paper : {false, true})
      for (const int64_t block : {1, 3, 16, 48, 67, 256})
        for (const int64_t count : {1, 2, 15, 33, 130, 519})
          for (const Input& input : all_inputs(count)) {
            const CodecSpec spec = spec_of(kind, block, paper);
            if (paper && !spec.paper_divisor) continue;
            on_every_target([&] { expect_plain(spec, input); });
            if (testing::Test::HasFatalFailure()) return;
          }
}

// Every fp32 exponent, and all neighbours of the fp8 and bf16 borders.
TEST(CodecInstructionSets, round_borders_alike) {
  for (const CodecKind kind : {CodecKind::kFp8E4m3, CodecKind::kFp8E5m2}) {
    const std::vector<double> table = plain::fp8_table(kind);
    std::vector<float> x;
    for (size_t code = 0; code + 1 < table.size(); ++code) {
      const float middle = static_cast<float>((table[code] + table[code + 1]) / 2);
      for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)})
        x.push_back(value), x.push_back(-value);
    }
    x.push_back(static_cast<float>(table.back()));  // a step of exactly 1
    const CodecSpec spec{kind, static_cast<int64_t>(x.size()), false, false, false};
    on_every_target([&] { expect_plain(spec, {"borders", x}); });
  }
  std::vector<float> x;
  for (uint32_t exponent = 0; exponent < 255; ++exponent)
    for (const uint32_t mantissa : {0x7fffu, 0x8000u, 0x8001u, 0x17fffu, 0x18000u, 0x7fffffu})
      x.push_back(std::bit_cast<float>((exponent << 23) | mantissa));
  on_every_target([&] { expect_plain(parse_codec("bf16"), {"borders", x}); });
}

// Both sides of every border of e3m0, for scales of every kind.
TEST(CodecInstructionSets, take_borders_of_e3m0_alike) {
  for (const float scale : {1.0f, 3.1415926f, 0x1.fffffep-3f, 0x1p-119f, FLT_MAX}) {
    std::vector<float> x = {scale};
    for (int power = 0; power < 8; ++power) {
      const float border = std::ldexp(scale * static_cast<float>(std::sqrt(0.5)), -power);
      for (const float value : {border, std::nextafter(border, 0.0f), std::ldexp(scale, -power)})
        x.push_back(value), x.push_back(-value);
    }
    const CodecSpec spec = spec_of("e3m0", static_cast<int64_t>(x.size()));
    on_every_target([&] { expect_plain(spec, {"borders", x}); });
  }
}

// Large aligned results are written past the caches, others are not.
TEST(CodecInstructionSets, alignment_does_not_change_a_bit) {
  const int64_t count = (int64_t{1} << 21) + 100;
  const std::vector<float> x = normals(count + 3, 8);
  for (const char* name : {"int8/256", "int4/64", "bf16", "fp8e4m3/100", "e3m0/64"}) {
    const CodecSpec spec = parse_codec(name);
    const std::vector<uint8_t> piece = encoded_of(spec, {x.begin() + 3, x.end()});
    const size_t size = static_cast<size_t>(encoded_bytes(spec, count));
    std::vector<uint8_t> shifted(size + 1);
    const std::span<uint8_t> bytes(shifted.data() + 1, size);
    EXPECT_EQ(encode(spec, {x.data() + 3, Dtype::kFloat32, count}, bytes), 0);
    EXPECT_EQ(std::memcmp(bytes.data(), piece.data(), size), 0) << name;
    std::vector<float> out(static_cast<size_t>(count) + 32);
    std::vector<float> expected(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; i += i < count - 50 ? 37 : 1)
      expected[static_cast<size_t>(i)] = plain::decode_one(spec, piece, count, i);
    for (int64_t offset : {0, 1, 16, 17}) {
      float* start = out.data();
      while (reinterpret_cast<uintptr_t>(start) % 64 != 0) ++start;
      start += offset % 16;
      decode(spec, bytes, {start, Dtype::kFloat32, count});
      for (int64_t i = 0; i < count; i += i < count - 50 ? 37 : 1)
        ASSERT_EQ(start[i], expected[static_cast<size_t>(i)]) << name << " element " << i;
    }
  }
}

}  // namespace
}  // namespace strait::codec
