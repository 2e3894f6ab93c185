// The tensor form of the codecs against the form on spans, bit for bit.
#include "strait/device/tensor_codec.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "strait/base/errors.h"
#include "tests/codec/inputs.h"

namespace strait::device {
namespace {

using codec::CodecSpec;

std::vector<codec::Input> inputs_of(int64_t count) {
  std::vector<codec::Input> inputs = codec::finite_inputs(count);
  std::vector<float> dirty = codec::normals(count, 12);
  for (size_t i = 0; i < dirty.size(); i += 7)
    dirty[i] =
        i % 2 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  inputs.push_back({"not finite", dirty});
  return inputs;
}

void expect_equal(const CodecSpec& spec, const codec::Input& input) {
  const int64_t count = static_cast<int64_t>(input.values.size());
  const at::Tensor source = at::tensor(input.values);
  std::vector<uint8_t> piece(static_cast<size_t>(codec::encoded_bytes(spec, count)));
  const int64_t lost = codec::encode(spec, {input.values.data(), Dtype::kFloat32, count}, piece);
  const EncodedTensor encoded = encode_tensor(spec, source);
  const std::string what = codec::print_codec(spec) + " " + input.name;
  EXPECT_EQ(encoded.non_finite.item<int64_t>(), lost) << what;
  ASSERT_EQ(encoded.piece.numel(), static_cast<int64_t>(piece.size()));
  ASSERT_EQ(std::memcmp(encoded.piece.data_ptr(), piece.data(), piece.size()), 0) << what;
  const std::vector<float> decoded = codec::decoded_of(spec, piece, count);
  const at::Tensor values = decode_tensor(spec, encoded.piece, count).contiguous();
  ASSERT_EQ(std::memcmp(values.data_ptr(), decoded.data(), decoded.size() * sizeof(float)), 0)
      << what;
}

TEST(TensorCodec, equals_the_form_on_spans_bit_for_bit) {
  for (const char* kind : {"int8", "int4", "e3m0", "qsgd1", "qsgd3", "qsgd4", "qsgd8"})
    for (const bool paper : {false, true})
      for (const int64_t block : {1, 3, 16, 100})
        for (const int64_t count : {1, 2, 63, 64, 101, 1000})
          for (const codec::Input& input : inputs_of(count))
            expect_equal(codec::spec_of(kind, block, paper), input);
}

TEST(TensorCodec, takes_any_shape_and_type) {
  const CodecSpec spec = codec::parse_codec("int4/32");
  const at::Tensor source = at::arange(120, at::kFloat).sub(50).view({8, 15});
  const at::Tensor piece = encode_tensor(spec, source.to(at::kDouble).t().contiguous().t()).piece;
  EXPECT_TRUE(piece.equal(encode_tensor(spec, source).piece));
  EXPECT_TRUE(piece.equal(encode_tensor(spec, source.to(at::kBFloat16)).piece));
}

TEST(TensorCodec, refuses_what_it_cannot_do) {
  const at::Tensor source = at::ones({4});
  try {
    encode_tensor(codec::parse_codec("int4/4+asymmetric"), source);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("nearest valid choice: int4/4"));
  }
  EXPECT_THROW(encode_tensor(codec::parse_codec("bf16"), source), UserError);
  EXPECT_THROW(decode_tensor(codec::parse_codec("int8/4"), at::zeros({9}, at::kByte), 4),
               InternalError);
}

}  // namespace
}  // namespace strait::device
