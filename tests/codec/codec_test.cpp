// Codecs: names, sizes, bounds, inputs that are not finite, sums of pieces.
#include "strait/codec/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "strait/base/errors.h"
#include "tests/codec/inputs.h"

namespace strait::codec {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::string refusal(const std::string& text) {
  try {
    parse_codec(text, "placement.codecs.weights");
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "placement.codecs.weights");
    return error.what();
  }
  return "accepted";
}

TEST(CodecNames, are_read_and_printed) {
  for (const char* text :
       {"none", "bf16", "bf16+ef", "fp16", "fp16+ef", "int8/64", "int4/512+asymmetric+paper+ef",
        "fp8e4m3/1", "fp8e5m2/2048+ef", "e3m0/64+ef", "int8/2048+paper"})
    EXPECT_EQ(print_codec(parse_codec(text)), text);
  EXPECT_EQ(print_codec(parse_codec("int8")), "int8/2048");
  EXPECT_EQ(print_codec(parse_codec("int4+ef")), "int4/512+ef");
  EXPECT_EQ(print_codec(parse_codec("e3m0")), "e3m0/64");
  EXPECT_EQ(parse_codec("int4/7+paper"), (CodecSpec{CodecKind::kInt4, 7, false, true, false}));
  EXPECT_EQ(print_codec(parse_codec("int8+ef+paper")), "int8/2048+paper+ef");
}

TEST(CodecNames, wrong_ones_name_the_nearest_choice) {
  EXPECT_THAT(refusal("int6/64"), HasSubstr("nearest valid choice: int"));
  EXPECT_THAT(refusal("fp8_e4m3"), HasSubstr("nearest valid choice: fp8e4m3"));
  EXPECT_THAT(refusal("int8/0"), HasSubstr("nearest valid choice: int8/1"));
  EXPECT_THAT(refusal("int8/-4"), HasSubstr("nearest valid choice: int8/1"));
  EXPECT_THAT(refusal("int8/"), HasSubstr("nearest valid choice: int8/2048"));
  EXPECT_THAT(refusal("int4/12x"), HasSubstr("nearest valid choice: int4/512"));
  EXPECT_THAT(refusal("int4/99999999999"), HasSubstr("nearest valid choice: int4/1073741824"));
  EXPECT_THAT(refusal("int4/99999999999999999999"), HasSubstr("nearest valid choice: int4/512"));
  EXPECT_THAT(refusal("bf16/64"), HasSubstr("nearest valid choice: bf16"));
  EXPECT_THAT(refusal("none+ef"), HasSubstr("nearest valid choice: none"));
  EXPECT_THAT(refusal("fp8e4m3+paper"), HasSubstr("nearest valid choice: fp8e4m3/2048"));
  EXPECT_THAT(refusal("e3m0/32+asymmetric"), HasSubstr("nearest valid choice: e3m0/32"));
  EXPECT_THAT(refusal("e3m1"), HasSubstr("nearest valid choice: e3m0"));
  EXPECT_THAT(refusal("int8+asymetric"), HasSubstr("nearest valid choice: int8/2048+asymmetric"));
  EXPECT_THAT(refusal("int8+ef+ef"), HasSubstr("nearest valid choice: int8/2048+ef"));
  EXPECT_THAT(refusal(""), HasSubstr("nearest valid choice: "));
}

// The formulas of the documents, by hand.
TEST(CodecSizes, are_exact) {
  for (const int64_t n : {0, 1, 2, 63, 64, 65, 127, 1000}) {
    EXPECT_EQ(encoded_bytes(parse_codec("none"), n), 4 * n);
    EXPECT_EQ(encoded_bytes(parse_codec("none"), n, Dtype::kBfloat16), 2 * n);
    EXPECT_EQ(encoded_bytes(parse_codec("bf16"), n), 2 * n);
    EXPECT_EQ(payload_bytes(parse_codec("int8/64"), n), n);
    EXPECT_EQ(payload_bytes(parse_codec("int4/64"), n), (n + 1) / 2);
    EXPECT_EQ(payload_bytes(parse_codec("fp8e5m2/64"), n), n);
    EXPECT_EQ(metadata_bytes(parse_codec("int4/64"), n), 4 * ((n + 63) / 64));
    EXPECT_EQ(encoded_bytes(parse_codec("e3m0/64"), n), 4 * ((n + 63) / 64) + (n + 1) / 2);
    EXPECT_EQ(metadata_bytes(parse_codec("int8/64+asymmetric"), n), 8 * ((n + 63) / 64));
    EXPECT_EQ(metadata_bytes(parse_codec("bf16"), n), 0);
    for (const char* text : {"none", "bf16", "fp16", "int8", "int8/3", "int4", "int4/1", "int4/7",
                             "int4/128", "int8/64+asymmetric", "int4/7+asymmetric", "fp8e4m3/33",
                             "e3m0", "e3m0/7", "qsgd4", "qsgd1/1", "qsgd3/7", "qsgd8/64"}) {
      const CodecSpec spec = parse_codec(text);
      EXPECT_EQ(scale_bytes(spec, encoded_bytes(spec, n)), metadata_bytes(spec, n))
          << text << " " << n;
    }
    EXPECT_EQ(encoded_bytes(parse_codec("fp8e4m3/64"), n), n + 4 * ((n + 63) / 64));
  }
}

// The figures of the specification, by hand.
TEST(CodecQsgd, sizes_are_exact) {
  EXPECT_EQ(encoded_bytes(parse_codec("qsgd4"), 1'000'000), 515'632);
  EXPECT_EQ(encoded_bytes(parse_codec("qsgd8/512"), 1'000'000), 1'015'632);
  EXPECT_EQ(encoded_bytes(parse_codec("qsgd3/512"), 1'000'000), 390'632);
  EXPECT_EQ(payload_bytes(parse_codec("qsgd3/64"), 3), 8);
}

TEST(CodecQsgd, constants_are_exact) {
  for (const char* name : {"qsgd2/512", "qsgd4/512", "qsgd8/512"})
    for (const int64_t count : {1, 7, 512, 513, 1300}) {
      const std::vector<float> x(static_cast<size_t>(count), -0.37f);
      EXPECT_EQ(decoded_of(parse_codec(name), encoded_of(parse_codec(name), x), count), x) << name;
    }
}

// As the reference's own test bounds the sum over ranks of the ramps (r + 1) arange.
TEST(CodecQsgd, ramps_are_within_their_bound) {
  for (const char* name : {"qsgd2/64", "qsgd4/64", "qsgd8/64"}) {
    const CodecSpec spec = parse_codec(name);
    const int64_t count = 200, ranks = 3;
    double worst = 0;
    std::vector<double> error(static_cast<size_t>(count), 0.0);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<float> x;
      for (int64_t i = 0; i < count; ++i) x.push_back(static_cast<float>((rank + 1) * i));
      const std::vector<float> got = decoded_of(spec, encoded_of(spec, x), count);
      for (size_t i = 0; i < x.size(); ++i)
        worst = std::max(worst, std::abs(error[i] += got[i] - x[i]));
    }
    EXPECT_LT(worst, 2.0 * 64 / ((1 << spec.bits) - 1) * ranks * (ranks + 1)) << name;
    EXPECT_GT(worst, 0) << name;
  }
}

// L10: over draws the mean is the element, and no error is above a step. Within 5 deviations of a
// mean of 4,000 draws whose variance is at most step^2 / 4.
TEST(CodecQsgd, stochastic_rounding_has_no_bias) {
  for (const char* name : {"qsgd1/64+stochastic", "qsgd3/50+stochastic", "qsgd8/7+stochastic"}) {
    const CodecSpec spec = parse_codec(name);
    EXPECT_EQ(print_codec(spec), name);
    constexpr int64_t kCount = 150, kDraws = 4000;
    const std::vector<float> x = normals(kCount, 3);
    std::vector<double> mean(x.size(), 0.0);
    std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(spec, kCount)));
    int64_t moved = 0;
    for (uint64_t draw = 0; draw < kDraws; ++draw) {
      ASSERT_EQ(encode(spec, {x.data(), Dtype::kFloat32, kCount}, piece, 1, {mix64(draw), 9}), 0);
      const std::vector<float> got = decoded_of(spec, piece, kCount);
      for (size_t i = 0; i < x.size(); ++i) {
        mean[i] += static_cast<double>(got[i]) / kDraws;
        moved += draw == 0 && got[i] != x[i];
      }
      for (int64_t first = 0; draw < 50 && first < kCount; first += spec.block) {
        const auto begin = x.begin() + first,
                   end = x.begin() + std::min(first + spec.block, kCount);
        const double bound =
            error_bound(spec, *std::min_element(begin, end), *std::max_element(begin, end));
        for (auto at = begin; at != end; ++at)
          ASSERT_LE(std::abs(static_cast<double>(*at) - got[static_cast<size_t>(at - x.begin())]),
                    bound)
              << name;
      }
    }
    EXPECT_GT(moved, kCount / 2);
    for (int64_t first = 0; first < kCount; first += spec.block) {
      const auto begin = x.begin() + first, end = x.begin() + std::min(first + spec.block, kCount);
      const double step =
          error_bound(spec, *std::min_element(begin, end), *std::max_element(begin, end));
      for (auto at = begin; at != end; ++at)
        EXPECT_NEAR(mean[static_cast<size_t>(at - x.begin())], *at,
                    5 * step / 2 / std::sqrt(kDraws) + 1e-6)
            << name;
    }
  }
}

// The draw of an element follows from the stream and its number alone.
TEST(CodecQsgd, stochastic_rounding_is_that_of_the_stream) {
  const CodecSpec spec = parse_codec("qsgd4/64+stochastic");
  const std::vector<float> x = normals(40000, 5);
  const auto encoded = [&](int64_t first, int64_t count, const Draw& draw, int threads) {
    std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(spec, count)));
    EXPECT_EQ(encode(spec, {x.data() + first, Dtype::kFloat32, count}, piece, threads, draw), 0);
    return decoded_of(spec, piece, count);
  };
  const std::vector<float> whole = encoded(0, 40000, {77, 0}, 1);
  EXPECT_EQ(whole, encoded(0, 40000, {77, 0}, 4));
  EXPECT_NE(whole, encoded(0, 40000, {78, 0}, 1));
  EXPECT_NE(whole, decoded_of(spec, encoded_of(parse_codec("qsgd4/64"), x), 40000));
  const std::vector<float> part = encoded(6400, 960, {77, 6400}, 1);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 6400));
  // Level by level as it is written: floor((x - low) / step + u).
  std::vector<float> want(64);
  const float low = *std::min_element(x.begin(), x.begin() + 64),
              high = *std::max_element(x.begin(), x.begin() + 64);
  const float step = static_cast<float>((static_cast<double>(high) - low) / 15);
  for (size_t i = 0; i < want.size(); ++i) {
    const double u = static_cast<double>(mix64(77 ^ mix64(i)) >> 11) * 0x1p-53;
    const double level =
        std::min(15.0, std::floor((static_cast<double>(x[i]) - low) * (1.0 / step) + u));
    want[i] = static_cast<float>(low + level * step);
  }
  EXPECT_TRUE(std::equal(want.begin(), want.end(), whole.begin()));
}

TEST(CodecQsgd, bits_outside_1_to_8_are_refused) {
  EXPECT_THAT(refusal("qsgd9"), HasSubstr("nearest valid choice: qsgd8"));
  EXPECT_THAT(refusal("qsgd0/64"), HasSubstr("nearest valid choice: qsgd1"));
  EXPECT_THAT(refusal("qsgd"), HasSubstr("nearest valid choice: qsgd4"));
  EXPECT_THAT(refusal("qsgd4x"), HasSubstr("nearest valid choice: qsgd4"));
  EXPECT_THAT(refusal("qsgd4/0"), HasSubstr("nearest valid choice: qsgd4/1"));
  EXPECT_THAT(refusal("int8+stochastic"), HasSubstr("nearest valid choice: int8/2048"));
  EXPECT_THAT(refusal("qsgd4+asymmetric"), HasSubstr("nearest valid choice: qsgd4/512"));
}

// By LibTorch's and numpy's tables of IEEE 754 binary16.
TEST(CodecValues, fp16_rounds_half_to_even_and_reports_what_is_beyond_it) {
  const CodecSpec fp16 = parse_codec("fp16");
  const std::vector<std::pair<float, float>> rounded = {{1.0f, 1.0f},
                                                        {1.0f + 0x1p-11f, 1.0f},
                                                        {1.0f + 3 * 0x1p-11f, 1.0f + 0x1p-9f},
                                                        {-0x1.2345p3f, -0x1.234p3f},
                                                        {0x1p-24f, 0x1p-24f},
                                                        {0x1p-25f, 0.0f},
                                                        {3 * 0x1p-25f, 0x1p-23f},
                                                        {0x1p-14f - 0x1p-26f, 0x1p-14f},
                                                        {65504.0f, 65504.0f},
                                                        {65519.0f, 65504.0f}};
  for (const auto& [value, want] : rounded) {
    const std::vector<float> x = {value};
    EXPECT_EQ(decoded_of(fp16, encoded_of(fp16, x), 1)[0], want) << value;
  }
  std::vector<uint8_t> piece(8);
  const std::vector<float> beyond = {65520.0f, -1e9f, kNan, 2.0f};
  EXPECT_EQ(encode(fp16, {beyond.data(), Dtype::kFloat32, 4}, piece), 3);
  EXPECT_EQ(decoded_of(fp16, piece, 4), (std::vector<float>{0, 0, 0, 2.0f}));
  EXPECT_EQ(encoded_bytes(fp16, 7), 14);
}

// specs: a = 1, divisor 2^(b-1).
TEST(CodecValues, golden_vectors_of_the_papers_divisor) {
  const std::vector<float> x = {-1.0f, 0.5f, 1.0f, 0.0f};
  const CodecSpec int8 = parse_codec("int8/4+paper"), int4 = parse_codec("int4/4+paper");
  EXPECT_EQ(decoded_of(int8, encoded_of(int8, x), 4),
            (std::vector<float>{-1.0f, 0.5f, 0.9921875f, 0.0f}));
  EXPECT_EQ(decoded_of(int4, encoded_of(int4, x), 4),
            (std::vector<float>{-1.0f, 0.5f, 0.875f, 0.0f}));
  EXPECT_EQ(encoded_of(int8, x)[0], 0x80);
  EXPECT_EQ(encoded_of(int4, x)[0], 0x48);  // 8 = -8 in the low half, 4 in the high half
}

TEST(CodecValues, integers_are_exact_with_the_better_divisor) {
  std::vector<float> eight, four;
  for (int i = -127; i <= 127; ++i) eight.push_back(0.25f * static_cast<float>(i));
  for (int i = -7; i <= 7; ++i) four.push_back(8.0f * static_cast<float>(i));
  const CodecSpec int8 = parse_codec("int8/255"), int4 = parse_codec("int4/15");
  EXPECT_EQ(decoded_of(int8, encoded_of(int8, eight), 255), eight);
  EXPECT_EQ(decoded_of(int4, encoded_of(int4, four), 15), four);
}

TEST(CodecE3m0, codes_are_signs_and_powers_of_two) {
  const CodecSpec spec = parse_codec("e3m0/6");
  const std::vector<uint8_t> piece =
      encoded_of(spec, {-3.0f, 1.5f, 0.0f, 0.046875f, -0.75f, 1e-9f});
  EXPECT_EQ(piece[0], 0x6f);  // -s in the low half, s / 2 in the high half
  EXPECT_EQ(piece[1], 0x10);  // zero, s / 64
  EXPECT_EQ(piece[2], 0x0d);  // -s / 4, what is too small
  EXPECT_EQ(decoded_of(spec, piece, 6),
            (std::vector<float>{-3.0f, 1.5f, 0.0f, 0.046875f, -0.75f, 0.0f}));
}

// Nearest in log2, away from the borders; below s / 2^6.5 zero. The worst relative error of what is
// not zero is sqrt(2) - 1, and it occurs.
TEST(CodecE3m0, rounds_to_the_nearest_in_log2) {
  const int64_t count = 400000;
  std::vector<float> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    x[static_cast<size_t>(i)] = static_cast<float>(7.3 * std::exp2(-8.0 * double(i) / count));
  const CodecSpec spec = spec_of("e3m0", count);
  const std::vector<float> got = decoded_of(spec, encoded_of(spec, x), count);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double octaves = std::log2(double{x[i]} / double{x[0]}), nearest = std::round(octaves);
    if (std::abs(std::abs(octaves - nearest) - 0.5) < 1e-6) continue;
    const double want = nearest < -6 ? 0.0 : double{x[0]} * std::exp2(nearest);
    ASSERT_EQ(double{got[i]}, want) << x[i];
    if (want > 0) worst = std::max(worst, std::abs(want / double{x[i]} - 1));
  }
  EXPECT_LE(worst, (std::sqrt(2.0) - 1) * (1 + 0x1p-20));
  EXPECT_GT(worst, 0.999 * (std::sqrt(2.0) - 1));
}

TEST(CodecE3m0, is_idempotent) {
  for (const int64_t block : {1, 7, 64})
    for (const Input& input : finite_inputs(1030)) {
      const CodecSpec spec = spec_of("e3m0", block);
      const std::vector<float> once = decoded_of(spec, encoded_of(spec, input.values), 1030);
      EXPECT_EQ(decoded_of(spec, encoded_of(spec, once), 1030), once) << input.name;
    }
}

void expect_within_bound(const CodecSpec& spec, const Input& input) {
  const int64_t count = static_cast<int64_t>(input.values.size());
  const std::vector<float> got = decoded_of(spec, encoded_of(spec, input.values), count);
  const int64_t block = spec.block > 0 ? spec.block : 1;
  for (int64_t first = 0; first < count; first += block) {
    const auto begin = input.values.begin() + first,
               end = input.values.begin() + std::min(first + block, count);
    const auto [low, high] = std::minmax_element(begin, end);
    const double bound = error_bound(spec, *low, *high);
    for (int64_t i = first; i < std::min(first + block, count); ++i) {
      const double x = input.values[static_cast<size_t>(i)];
      ASSERT_LE(std::abs(x - static_cast<double>(got[static_cast<size_t>(i)])), bound)
          << print_codec(spec) << " " << input.name << " element " << i << " of " << count << " is "
          << x << ", decoded " << got[static_cast<size_t>(i)];
    }
  }
}

TEST(CodecBound, holds_for_every_input_block_and_length) {
  for (const std::string& kind : lossy_kinds())
    for (const bool paper : {false, true})
      for (const int64_t block : {1, 2, 3, 15, 16, 17, 64, 100, 512})
        for (const int64_t count : {1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 129, 511, 513, 1030})
          for (const Input& input : finite_inputs(count))
            expect_within_bound(spec_of(kind, block, paper), input);
}

// The bound is not merely large: a ramp comes within 1 % of it, and half a step is what is stated.
TEST(CodecBound, is_tight) {
  std::vector<float> ramp(4001);
  for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = -1.0f + 0.0005f * static_cast<float>(i);
  for (const std::string& kind : lossy_kinds()) {
    if (kind == "bf16") continue;
    const CodecSpec spec = spec_of(kind, 4001);
    const std::vector<float> got = decoded_of(spec, encoded_of(spec, ramp), 4001);
    double worst = 0;
    for (size_t i = 0; i < ramp.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(ramp[i]) - static_cast<double>(got[i])));
    EXPECT_GT(worst, 0.9 * error_bound(spec, -1, 1)) << kind;
  }
  EXPECT_NEAR(error_bound(parse_codec("int8"), -1, 0.5), 0.5 / 127, 1e-6);
  EXPECT_NEAR(error_bound(parse_codec("int4+paper"), -1, 1), 1.0 / 8, 1e-4);
  EXPECT_NEAR(error_bound(parse_codec("int4+asymmetric"), -1, 2), 1.5 / 15, 1e-4);
}

TEST(CodecValues, zeros_stay_zero) {
  for (const std::string& kind : lossy_kinds()) {
    const CodecSpec spec = spec_of(kind, 16);
    std::vector<float> x(48, 0.0f);
    std::fill(x.begin() + 16, x.begin() + 32, 7.0f);
    const std::vector<float> got = decoded_of(spec, encoded_of(spec, x), 48);
    for (size_t i = 0; i < 48; ++i)
      EXPECT_EQ(i >= 16 && i < 32 ? 0.0f : got[i], 0.0f) << kind << " element " << i;
  }
}

TEST(CodecNonFinite, is_counted_and_never_spread) {
  for (const std::string& kind : lossy_kinds()) {
    for (const int64_t block : {5, 16, 64}) {
      const CodecSpec spec = spec_of(kind, block);
      std::vector<float> clean = normals(200, 9), dirty = clean;
      for (const size_t i : {3u, 64u, 199u}) clean[i] = 0.0f;
      dirty[3] = kNan, dirty[64] = kInfinity, dirty[199] = -kInfinity;
      std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(spec, 200)));
      EXPECT_EQ(encode(spec, {dirty.data(), Dtype::kFloat32, 200}, piece), 3);
      for (const float value : decoded_of(spec, piece, 200)) EXPECT_TRUE(std::isfinite(value));
      // Zero lies inside every symmetric range, so it changes no scale.
      if (!spec.asymmetric) {
        EXPECT_EQ(piece, encoded_of(spec, clean)) << kind;
      }
      EXPECT_EQ(encode(spec, {clean.data(), Dtype::kFloat32, 200}, piece), 0);
    }
  }
}

TEST(CodecNonFinite, takes_no_part_in_an_asymmetric_range) {
  const CodecSpec spec = parse_codec("int8/4+asymmetric");
  const std::vector<float> x = {10.0f, kNan, 12.0f, 11.0f};
  std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(spec, 4)));
  EXPECT_EQ(encode(spec, {x.data(), Dtype::kFloat32, 4}, piece), 1);
  const std::vector<float> got = decoded_of(spec, piece, 4);
  EXPECT_NEAR(got[0], 10, 1e-5);
  EXPECT_NEAR(got[1], 10, 1e-5);  // the level nearest to 0
  EXPECT_NEAR(got[2], 12, 1e-5);
  EXPECT_NEAR(got[3], 11, 1.001 / 255);
}

TEST(CodecNonFinite, a_block_of_nothing_else_is_zero) {
  for (const std::string& kind : lossy_kinds()) {
    const CodecSpec spec = spec_of(kind, 8);
    const std::vector<float> x(20, kNan);
    std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(spec, 20)));
    EXPECT_EQ(encode(spec, {x.data(), Dtype::kFloat32, 20}, piece), 20);
    EXPECT_EQ(decoded_of(spec, piece, 20), std::vector<float>(20, 0.0f)) << kind;
  }
}

TEST(CodecNonFinite, none_copies_and_counts) {
  const std::vector<float> x = {1.0f, kNan, kInfinity};
  std::vector<uint8_t> piece(12);
  EXPECT_EQ(encode(parse_codec("none"), {x.data(), Dtype::kFloat32, 3}, piece), 2);
  EXPECT_TRUE(std::isnan(decoded_of(parse_codec("none"), piece, 3)[1]));
  const std::vector<double> wide = {1.0, 1e300};
  std::vector<uint8_t> bytes(16);
  EXPECT_EQ(encode(parse_codec("none"), {wide.data(), Dtype::kFloat64, 2}, bytes), 1);
  const std::vector<uint16_t> half = {0x3f80, 0x7f80, 0xff81};
  std::vector<uint8_t> six(6);
  EXPECT_EQ(encode(parse_codec("none"), {half.data(), Dtype::kBfloat16, 3}, six), 2);
}

// bf16 and fp64 sources and results are those of fp32, whatever the codec.
TEST(CodecDtypes, agree_with_fp32) {
  for (const std::string& kind : lossy_kinds()) {
    for (const int64_t count : {1, 16, 33, 130, 1000}) {
      const CodecSpec spec = spec_of(kind, 48);
      const size_t size = static_cast<size_t>(count);
      std::vector<uint16_t> half(size);
      std::vector<float> x = normals(count, 11);
      std::vector<double> wide(size);
      for (size_t i = 0; i < size; ++i) {
        half[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(x[i]) >> 16);
        x[i] = std::bit_cast<float>(uint32_t{half[i]} << 16);
        wide[i] = x[i];
      }
      const std::vector<uint8_t> expected = encoded_of(spec, x);
      std::vector<uint8_t> piece(expected.size());
      EXPECT_EQ(encode(spec, {half.data(), Dtype::kBfloat16, count}, piece), 0);
      EXPECT_EQ(piece, expected) << kind;
      std::fill(piece.begin(), piece.end(), 0xee);
      EXPECT_EQ(encode(spec, {wide.data(), Dtype::kFloat64, count}, piece), 0);
      EXPECT_EQ(piece, expected) << kind;
      const std::vector<float> values = decoded_of(spec, piece, count);
      std::vector<double> doubles(size);
      decode(spec, piece, {doubles.data(), Dtype::kFloat64, count});
      EXPECT_EQ(doubles, std::vector<double>(values.begin(), values.end())) << kind;
      decode(spec, piece, {half.data(), Dtype::kBfloat16, count});
      const std::vector<uint8_t> rounded = encoded_of(parse_codec("bf16"), values);
      EXPECT_EQ(std::memcmp(half.data(), rounded.data(), rounded.size()), 0) << kind;
    }
  }
}

TEST(CodecDtypes, wrong_buffers_are_our_bug) {
  std::vector<float> x(8);
  std::vector<uint8_t> piece(12);
  const CodecSpec spec = parse_codec("int8/8");
  const auto encode_it = [&](Dtype dtype, int64_t count) {
    static_cast<void>(encode(spec, {x.data(), dtype, count}, piece));
  };
  EXPECT_THROW(encode_it(Dtype::kFloat32, 7), InternalError);
  EXPECT_THROW(encode_it(Dtype::kInt32, 8), InternalError);
  EXPECT_NO_THROW(encode_it(Dtype::kFloat32, 8));
  EXPECT_THROW(decode(spec, piece, {x.data(), Dtype::kFloat32, 7}), InternalError);
  EXPECT_THROW(decode_add(spec, piece, {x.data(), Dtype::kBfloat16, 8}), InternalError);
  EXPECT_THROW(decode_sum({spec, {}, 8}, {x.data(), Dtype::kFloat32, 8}), InternalError);
}

/// Pieces of `ranks` ranks, and their decoded sum in rank order in fp32.
struct RankPieces {
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<std::span<const uint8_t>> spans;
  std::vector<float> sum;

  RankPieces(const CodecSpec& spec, int64_t count, int ranks) : sum(static_cast<size_t>(count)) {
    for (int rank = 0; rank < ranks; ++rank) {
      bytes.push_back(encoded_of(spec, normals(count, 20 + static_cast<uint64_t>(rank))));
      const std::vector<float> values = decoded_of(spec, bytes.back(), count);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = rank == 0 ? values[i] : sum[i] + values[i];
    }
    spans.assign(bytes.begin(), bytes.end());
  }
};

TEST(CodecSums, fused_forms_equal_the_separate_steps) {
  for (const std::string kind :
       {"none", "bf16", "int8", "int4", "fp8e4m3", "e3m0", "int4+asymmetric"}) {
    for (const int64_t count : {1, 17, 300, 5000, 40001}) {
      for (const int ranks : {1, 2, 5}) {
        const CodecSpec spec = spec_of(kind, 33);
        const RankPieces rank_pieces(spec, count, ranks);
        std::vector<float> sum(static_cast<size_t>(count), -1.0f);
        const Pieces from{spec, rank_pieces.spans, count};
        for (const int threads : {1, 3}) {
          decode_sum(from, {sum.data(), Dtype::kFloat32, count}, threads);
          EXPECT_EQ(sum, rank_pieces.sum) << kind << " " << count;
        }
        sum = decoded_of(spec, rank_pieces.bytes[0], count);
        for (int rank = 1; rank < ranks; ++rank)
          decode_add(spec, rank_pieces.spans[static_cast<size_t>(rank)],
                     {sum.data(), Dtype::kFloat32, count});
        EXPECT_EQ(sum, rank_pieces.sum) << kind << " " << count;
        for (const char* name : {"int8/7", "int4/4096", "bf16", "none", "fp8e5m2/100", "e3m0/9"}) {
          const CodecSpec to = parse_codec(name);
          std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(to, count)));
          EXPECT_EQ(decode_add_encode(from, to, piece, 2), 0);
          EXPECT_EQ(piece, encoded_of(to, rank_pieces.sum)) << kind << " to " << name;
        }
      }
    }
  }
}

TEST(CodecSums, other_results) {
  const CodecSpec spec = parse_codec("int8/64");
  const RankPieces rank_pieces(spec, 1000, 3);
  std::vector<double> doubles(1000, 0.5), expected(1000, 0.5);
  decode_add(spec, rank_pieces.spans[0], {doubles.data(), Dtype::kFloat64, 1000});
  const std::vector<float> first = decoded_of(spec, rank_pieces.bytes[0], 1000);
  for (size_t i = 0; i < 1000; ++i) expected[i] += static_cast<double>(first[i]);
  EXPECT_EQ(doubles, expected);
  std::vector<uint8_t> half(2000);
  decode_sum({spec, rank_pieces.spans, 1000}, {half.data(), Dtype::kBfloat16, 1000});
  EXPECT_EQ(half, encoded_of(parse_codec("bf16"), rank_pieces.sum));
}

TEST(CodecSums, that_overflow_are_reported) {
  const CodecSpec spec = parse_codec("int8/4");
  const std::vector<uint8_t> piece = encoded_of(spec, {FLT_MAX, 1e38f, 0.0f, -FLT_MAX});
  const std::vector<std::span<const uint8_t>> twice = {piece, piece};
  std::vector<uint8_t> out(static_cast<size_t>(encoded_bytes(spec, 4)));
  EXPECT_EQ(decode_add_encode({spec, twice, 4}, spec, out), 2);
  // In every chunk of a long piece.
  const std::vector<uint8_t> many = encoded_of(spec, std::vector<float>(100000, FLT_MAX));
  const std::vector<std::span<const uint8_t>> pair = {many, many};
  std::vector<uint8_t> sums(many.size());
  EXPECT_EQ(decode_add_encode({spec, pair, 100000}, spec, sums, 3), 100000);
}

TEST(CodecThreads, do_not_change_a_bit) {
  const std::vector<float> x = normals(200001, 31);
  for (const std::string& kind : lossy_kinds()) {
    const CodecSpec spec = spec_of(kind, 37);
    const std::vector<uint8_t> piece = encoded_of(spec, x);
    EXPECT_EQ(encoded_of(spec, x, 4), piece) << kind;
    EXPECT_EQ(decoded_of(spec, piece, 200001, 4), decoded_of(spec, piece, 200001)) << kind;
  }
}

}  // namespace
}  // namespace strait::codec
