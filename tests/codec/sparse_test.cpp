// topk and randomk: against a plain form that sorts, their sizes, what they refuse, and error
// feedback that loses nothing.
#include "strait/codec/sparse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "strait/base/errors.h"
#include "strait/codec/error_feedback.h"
#include "tests/codec/inputs.h"

namespace strait::codec {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& text) {
  try {
    parse_codec(text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CodecSparse, names_are_read_and_printed) {
  for (const char* text : {"topk/0.01", "topk/1+ef", "randomk/0.125", "randomk/0.001+ef"})
    EXPECT_EQ(print_codec(parse_codec(text)), text);
  EXPECT_EQ(print_codec(parse_codec("topk")), "topk/0.01");
  EXPECT_THAT(refusal("topk/0"), HasSubstr("nearest valid choice: topk/0.01"));
  EXPECT_THAT(refusal("topk/-1"), HasSubstr("nearest valid choice: topk/0.01"));
  EXPECT_THAT(refusal("topk/2"), HasSubstr("nearest valid choice: topk/1"));
  EXPECT_THAT(refusal("randomk/x"), HasSubstr("nearest valid choice: randomk/0.01"));
  EXPECT_THAT(refusal("randomk/nan"), HasSubstr("nearest valid choice: randomk/0.01"));
  EXPECT_THAT(refusal("topk/0.1+paper"), HasSubstr("nearest valid choice: topk/0.1"));
  EXPECT_THAT(refusal("topq"), HasSubstr("nearest valid choice: topk"));
}

TEST(CodecSparse, sizes_are_exact) {
  const CodecSpec top = parse_codec("topk/0.01"), random = parse_codec("randomk/0.01");
  EXPECT_EQ(kept_elements(parse_codec("topk/0.29"), 100), 29);
  EXPECT_EQ(payload_bytes(top, 1000), 40);
  EXPECT_EQ(metadata_bytes(top, 1000), 40);
  EXPECT_EQ(payload_bytes(random, 1000), 40);
  EXPECT_EQ(metadata_bytes(random, 1000), 8);
  EXPECT_EQ(encoded_bytes(top, 99), 8);  // one element at least
  EXPECT_EQ(encoded_bytes(top, 0), 0);
  // All elements where that is not longer: 8 k >= 4 n.
  EXPECT_EQ(payload_bytes(parse_codec("topk/0.5"), 10), 40);
  EXPECT_EQ(metadata_bytes(parse_codec("topk/0.5"), 10), 0);
  EXPECT_EQ(encoded_bytes(parse_codec("topk/0.49"), 100), 392);
  EXPECT_EQ(encoded_bytes(parse_codec("randomk/0.99"), 100), 400);
  EXPECT_EQ(encoded_bytes(parse_codec("randomk/0.97"), 100), 396);
}

/// The k largest, the earlier of equal ones first.
std::vector<float> plain_largest(const std::vector<float>& x, int64_t k) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  const auto size = [&](size_t i) { return std::isfinite(x[i]) ? std::abs(x[i]) : 0.0f; };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return size(a) > size(b); });
  std::vector<float> kept(x.size(), 0.0f);
  for (int64_t i = 0; i < k; ++i)
    kept[order[static_cast<size_t>(i)]] =
        size(order[static_cast<size_t>(i)]) > 0 ? x[order[static_cast<size_t>(i)]] : 0.0f;
  return kept;
}

TEST(CodecSparse, topk_equals_the_plain_form) {
  for (const char* name : {"topk/0.01", "topk/0.2", "topk/0.45", "topk/0.7"})
    for (const int64_t count : {1, 2, 3, 17, 1000, 5003}) {
      std::vector<float> x = normals(count, static_cast<uint64_t>(count), 1e-3f);
      for (size_t i = 0; i < x.size(); i += 3) x[i] = std::round(x[i] * 2e3f);  // equal ones
      const CodecSpec spec = parse_codec(name);
      const int64_t k = is_dense(spec, count) ? count : kept_elements(spec, count);
      EXPECT_EQ(decoded_of(spec, encoded_of(spec, x), count), plain_largest(x, k))
          << name << " " << count;
    }
}

TEST(CodecSparse, what_is_not_finite_is_counted_wherever_it_stands) {
  std::vector<float> x = normals(500, 1);
  x[3] = std::numeric_limits<float>::infinity();
  x[400] = std::numeric_limits<float>::quiet_NaN();
  for (const char* name : {"topk/0.01", "randomk/0.01", "topk/1"}) {
    const CodecSpec spec = parse_codec(name);
    std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(spec, 500)));
    EXPECT_EQ(encode(spec, {x.data(), Dtype::kFloat32, 500}, piece), 2) << name;
    for (const float value : decoded_of(spec, piece, 500)) EXPECT_TRUE(std::isfinite(value));
  }
}

std::vector<float> drawn(const CodecSpec& spec, const std::vector<float>& x, const Draw& draw) {
  const int64_t count = static_cast<int64_t>(x.size());
  std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(spec, count)));
  EXPECT_EQ(encode(spec, {x.data(), Dtype::kFloat32, count}, piece, 1, draw), 0);
  return decoded_of(spec, piece, count);
}

// One of each stretch, of 21 or 22: within 5 deviations of the mean.
TEST(CodecSparse, randomk_draws_every_element_as_often) {
  const CodecSpec spec = parse_codec("randomk/0.05");
  const std::vector<float> ones(107, 1.0f);  // stretches of 21 and 22
  std::vector<double> taken(ones.size(), 0.0);
  constexpr int64_t kDraws = 20000;
  for (int64_t key = 0; key < kDraws; ++key) {
    const auto got = drawn(spec, ones, {mix64(static_cast<uint64_t>(key)), 7});
    EXPECT_EQ(std::count(got.begin(), got.end(), 1.0f), 5);
    for (size_t i = 0; i < got.size(); ++i) taken[i] += got[i];
  }
  for (size_t i = 0; i < taken.size(); ++i) {
    size_t stretch = 0;
    while (i >= (stretch + 1) * 107 / 5) ++stretch;
    const double mean = kDraws / static_cast<double>((stretch + 1) * 107 / 5 - stretch * 107 / 5);
    EXPECT_NEAR(taken[i], mean, 5 * std::sqrt(mean)) << i;
  }
}

TEST(CodecSparse, randomk_of_one_draw_adds_up) {
  const CodecSpec spec = parse_codec("randomk/0.1");
  const std::vector<float> x = normals(333, 3), y = normals(333, 4);
  const Draw draw{99, 1000};
  const auto a = drawn(spec, x, draw), b = drawn(spec, y, draw), again = drawn(spec, x, draw);
  EXPECT_EQ(a, again);
  EXPECT_NE(a, drawn(spec, x, {99, 1001}));
  EXPECT_NE(a, drawn(spec, x, {98, 1000}));
  for (size_t i = 0; i < x.size(); ++i) {
    if (a[i] != 0) {
      EXPECT_EQ(a[i], x[i]);
    }
    EXPECT_EQ(a[i] != 0, b[i] != 0) << i;  // the same positions
  }
}

// L11, exactly: whole numbers lose nothing in fp32.
TEST(CodecSparse, feedback_telescopes) {
  for (const char* name : {"topk/0.02+ef", "randomk/0.02+ef"}) {
    const CodecSpec spec = parse_codec(name);
    EXPECT_EQ(feedback_options(spec).averaging, 0);
    std::vector<float> residual(400, 0.0f), given(400, 0.0f), got(400, 0.0f);
    for (uint64_t step = 0; step < 50; ++step) {
      std::vector<float> x = normals(400, step, 100.0f);
      for (float& value : x) value = std::round(value);
      std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(spec, 400)));
      EXPECT_EQ(encode_with_feedback(spec, {x.data(), Dtype::kFloat32, 400},
                                     {residual, 0.0, {step, 0}}, piece),
                0);
      const std::vector<float> sent = decoded_of(spec, piece, 400);
      for (size_t i = 0; i < x.size(); ++i) given[i] += x[i], got[i] += sent[i];
    }
    for (size_t i = 0; i < given.size(); ++i) EXPECT_EQ(got[i] + residual[i], given[i]) << name;
    EXPECT_GT(std::count_if(got.begin(), got.end(), [](float value) { return value != 0; }), 100);
  }
}

TEST(CodecSparse, pieces_are_summed_in_their_order) {
  const CodecSpec spec = parse_codec("topk/0.1");
  const std::vector<float> x = normals(200, 5), y = normals(200, 6);
  const std::vector<uint8_t> a = encoded_of(spec, x), b = encoded_of(spec, y);
  const std::vector<std::span<const uint8_t>> pieces = {a, b};
  std::vector<float> want = decoded_of(spec, a, 200), sum(200);
  const std::vector<float> second = decoded_of(spec, b, 200);
  for (size_t i = 0; i < want.size(); ++i) want[i] += second[i];
  decode_sum({spec, pieces, 200}, {sum.data(), Dtype::kFloat32, 200});
  EXPECT_EQ(sum, want);
  std::vector<uint8_t> again(static_cast<size_t>(encoded_bytes(spec, 200)));
  EXPECT_EQ(decode_add_encode({spec, pieces, 200}, spec, again), 0);
  EXPECT_EQ(again, encoded_of(spec, want));
  std::vector<double> wide(200, 1.0);
  decode_add(spec, a, {wide.data(), Dtype::kFloat64, 200});
  const std::vector<float> first = decoded_of(spec, a, 200);
  for (size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(wide[i], 1.0 + first[i]);
}

}  // namespace
}  // namespace strait::codec
