// Error feedback: telescoping, the LoCo average, resets.
#include "strait/codec/error_feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "strait/base/errors.h"
#include "tests/codec/inputs.h"

namespace strait::codec {
namespace {

constexpr int64_t kCount = 3001;

std::vector<float> send(ErrorFeedback& feedback, const CodecSpec& spec, const std::vector<float>& x,
                        int threads = 1) {
  std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(spec, kCount)));
  EXPECT_EQ(feedback.encode(spec, {x.data(), Dtype::kFloat32, kCount}, piece, threads), 0);
  return decoded_of(spec, piece, kCount);
}

// sum of decoded = sum of inputs - last residual. Each of the 30 steps adds rounding of three fp32
// operations on numbers below 8.
TEST(ErrorFeedback, classic_form_telescopes) {
  for (const char* name : {"int4/64", "int8/64", "fp8e4m3/64", "bf16", "int4/64+asymmetric"}) {
    const CodecSpec spec = parse_codec(name);
    ErrorFeedback feedback(kCount, {.averaging = 0.0, .reset_every = 0});
    std::vector<double> given(kCount), got(kCount);
    double plain_error = 0, error = 0;
    for (uint64_t step = 0; step < 30; ++step) {
      const std::vector<float> x = normals(kCount, 100 + step % 3);
      const std::vector<float> decoded = send(feedback, spec, x, 1 + static_cast<int>(step % 2));
      for (size_t i = 0; i < kCount; ++i) given[i] += x[i], got[i] += decoded[i];
    }
    for (size_t i = 0; i < kCount; ++i) {
      const double residual = feedback.residual()[i];
      ASSERT_NEAR(got[i], given[i] - residual, 30 * 3 * 8 * 0x1p-24) << name;
      error = std::max(error, std::abs(given[i] - got[i]));
    }
    // Without feedback the same three inputs repeat their errors, which add up.
    for (uint64_t step = 0; step < 3; ++step) {
      const std::vector<float> x = normals(kCount, 100 + step);
      const std::vector<float> decoded = decoded_of(spec, encoded_of(spec, x), kCount);
      for (size_t i = 0; i < kCount; ++i)
        plain_error = std::max(plain_error, 10 * std::abs(static_cast<double>(x[i]) - decoded[i]));
    }
    EXPECT_LT(error, plain_error / 2) << name;
  }
}

TEST(ErrorFeedback, averages_as_written) {
  const CodecSpec spec = parse_codec("int4/128");
  ErrorFeedback feedback(kCount, {.averaging = 0.75, .reset_every = 0});
  std::vector<float> residual(kCount, 0.0f);
  for (uint64_t step = 0; step < 5; ++step) {
    const std::vector<float> x = normals(kCount, 50 + step);
    std::vector<float> y(kCount);
    for (size_t i = 0; i < kCount; ++i) y[i] = x[i] + residual[i];
    const std::vector<float> expected = decoded_of(spec, encoded_of(spec, y), kCount);
    EXPECT_EQ(send(feedback, spec, x), expected);
    for (size_t i = 0; i < kCount; ++i) {
      residual[i] = 0.75f * residual[i] + 0.25f * (y[i] - expected[i]);
      ASSERT_FLOAT_EQ(feedback.residual()[i], residual[i]);
      residual[i] = feedback.residual()[i];
    }
  }
}

TEST(ErrorFeedback, resets) {
  const CodecSpec spec = parse_codec("int4/128");
  const auto is_zero = [](const ErrorFeedback& feedback) {
    for (const float value : feedback.residual())
      if (value != 0) return false;
    return true;
  };
  ErrorFeedback feedback(kCount, {.averaging = 0.5, .reset_every = 3});
  for (int64_t step = 1; step <= 7; ++step) {
    send(feedback, spec, normals(kCount, 70));
    EXPECT_EQ(is_zero(feedback), step % 3 == 0) << step;
    EXPECT_EQ(feedback.encodes(), step % 3);
  }
  ErrorFeedback twin(kCount);
  twin.restore(feedback.residual(), feedback.encodes());
  EXPECT_TRUE(
      std::equal(twin.residual().begin(), twin.residual().end(), feedback.residual().begin()));
  twin.scale(2.0f);
  EXPECT_EQ(twin.residual()[7], 2 * feedback.residual()[7]);
  std::vector<float> x = normals(kCount, 71);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(spec, kCount)));
  EXPECT_EQ(feedback.encode(spec, {x.data(), Dtype::kFloat32, kCount}, piece), 1);
  EXPECT_TRUE(is_zero(feedback));
  EXPECT_FALSE(is_zero(twin));
  twin.reset();
  EXPECT_TRUE(is_zero(twin));
}

TEST(ErrorFeedback, refuses_what_cannot_work) {
  EXPECT_THROW(ErrorFeedback(4, {.averaging = 1.0}), UserError);
  EXPECT_THROW(ErrorFeedback(4, {.averaging = -0.1}), UserError);
  EXPECT_THROW(ErrorFeedback(4, {.reset_every = -1}), UserError);
  ErrorFeedback feedback(4);
  std::vector<float> x(5);
  std::vector<uint8_t> piece(20);
  const auto encode_it = [&](const CodecSpec& spec) {
    static_cast<void>(feedback.encode(spec, {x.data(), Dtype::kFloat32, 5}, piece));
  };
  EXPECT_THROW(encode_it(parse_codec("int8/5")), InternalError);
  EXPECT_THROW(encode_it(parse_codec("none")), InternalError);
}

}  // namespace
}  // namespace strait::codec
