// Arithmetic on a device against that on plain memory.
#include "strait/device/arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "strait/base/bfloat16.h"
#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "tests/tensor/devices.h"

namespace strait::device {
namespace {

constexpr int64_t kCount = 2000;

std::vector<double> numbers(uint64_t seed, double scale) {
  const RandomStream stream(seed, "test");
  std::vector<double> values;
  for (int64_t i = 0; i < kCount; ++i) values.push_back(scale * stream.normal(i));
  return values;
}

/// The same buffers in plain memory and on a device, and the two arithmetics.
class ArithmeticTest : public ::testing::TestWithParam<std::string> {
 protected:
  template <class T>
  T* on_device(const std::vector<T>& values) {
    const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(T));
    T* const address = static_cast<T*>(device_->allocate(bytes));
    tensor_->put(values.data(), address, bytes);
    return address;
  }
  template <class T>
  std::vector<T> back(const T* address, int64_t count = kCount) {
    std::vector<T> values(static_cast<size_t>(count));
    tensor_->get(address, values.data(), count * static_cast<int64_t>(sizeof(T)));
    return values;
  }

  std::shared_ptr<tensor::Device> device_ = tensor::make_test_device(GetParam());
  std::unique_ptr<Arithmetic> host_ = make_arithmetic(nullptr, 1);
  std::unique_ptr<Arithmetic> tensor_ = make_arithmetic(device_.get(), 1);
};

TEST_P(ArithmeticTest, UpdatesAreThoseOfTheKernels) {
  for (const char* kind : {"adamw", "sgd"}) {
    OptimizerOptions options;
    options.kind = kind;
    options.betas[1] = 0.95;
    std::vector<double> weights = numbers(1, 1.0), first(kCount, 0.0), second(kCount, 0.0);
    double* const device_weights = on_device(weights);
    double *const device_first = on_device(first), *const device_second = on_device(second);
    for (int64_t step = 1; step <= 4; ++step) {
      const std::vector<double> gradient = numbers(10 + static_cast<uint64_t>(step), 0.1);
      UpdateCall call{.options = options,
                      .learning_rate = 1e-2,
                      .weight_decay = step % 2 ? 0.1 : 0.0,
                      .gradient_scale = step == 3 ? 0.5 : 1.0,
                      .step = step,
                      .weights = {weights.data(), Dtype::kFloat64, kCount},
                      .gradient = {gradient.data(), Dtype::kFloat64, kCount}};
      call.states[0] = first.data();
      call.states[1] = options.kind == "adamw" ? second.data() : nullptr;
      host_->update(call);
      call.weights.data = device_weights;
      call.gradient.data = on_device(gradient);
      call.states[0] = device_first;
      call.states[1] = options.kind == "adamw" ? device_second : nullptr;
      tensor_->update(call);
    }
    const std::vector<double> got = back(device_weights), moments = back(device_first);
    for (int64_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(got[i], weights[i], 1e-14 * (1 + std::abs(weights[i]))) << kind << i;
      ASSERT_NEAR(moments[i], first[i], 1e-14) << kind << i;
    }
  }
}

TEST_P(ArithmeticTest, UpdatesRoundTheNewWeightsWhereThatIsWanted) {
  for (const char* kind : {"adamw", "sgd"}) {
    OptimizerOptions options;
    options.kind = kind;
    const std::vector<double> wide = numbers(1, 1.0), wide_gradient = numbers(2, 0.1);
    std::vector<float> weights(wide.begin(), wide.end()), first(kCount, 0.0f), second = first;
    const std::vector<float> gradient(wide_gradient.begin(), wide_gradient.end());
    std::vector<Bfloat16> rounded(kCount, Bfloat16(7.0f));
    float* const device_weights = on_device(weights);
    Bfloat16* const device_rounded = on_device(rounded);
    UpdateCall call{.options = options,
                    .learning_rate = 1e-2,
                    .weights = {device_weights, Dtype::kFloat32, kCount},
                    .gradient = {on_device(gradient), Dtype::kFloat32, kCount}};
    const bool two = options.kind == "adamw";
    call.states[0] = on_device(first);
    call.states[1] = two ? on_device(second) : nullptr;
    call.rounded = device_rounded;
    tensor_->update(call);
    const std::vector<float> on_it = back(device_weights);
    const std::vector<Bfloat16> got = back(device_rounded);
    call.weights.data = weights.data();
    call.gradient.data = gradient.data();
    call.states[0] = first.data();
    call.states[1] = two ? second.data() : nullptr;
    call.rounded = rounded.data();
    host_->update(call);
    for (size_t i = 0; i < rounded.size(); ++i) {
      ASSERT_EQ(rounded[i].bits, Bfloat16(weights[i]).bits) << kind << i;
      ASSERT_EQ(got[i].bits, Bfloat16(on_it[i]).bits) << kind << i;
    }
  }
}

TEST_P(ArithmeticTest, ScalarsAreAddedUpWhereTheyAre) {
  const std::vector<double> values = numbers(3, 2.0);
  const std::vector<float> narrow(values.begin(), values.end());
  double want = 1.5;
  double* const scalar = on_device(std::vector<double>{1.5});
  host_->add_squared_norm({values.data(), Dtype::kFloat64, kCount}, &want);
  host_->add_squared_norm({narrow.data(), Dtype::kFloat32, kCount}, &want);
  host_->add(7.0, &want);
  tensor_->add_squared_norm({on_device(values), Dtype::kFloat64, kCount}, scalar);
  tensor_->add_squared_norm({on_device(narrow), Dtype::kFloat32, kCount}, scalar);
  tensor_->add(7.0, scalar);
  EXPECT_NEAR(back(scalar, 1)[0], want, 1e-12 * want);
}

TEST_P(ArithmeticTest, CodecsGiveTheSameBitsAndCountWhatIsNotFinite) {
  std::vector<double> wide = numbers(4, 3.0);
  wide[5] = std::numeric_limits<double>::infinity();
  wide[700] = std::nan("");
  wide[9] = 3.4e38;
  const std::vector<float> values(wide.begin(), wide.end());
  for (const char* text : {"none", "bf16", "int8/256", "int4/128"}) {
    const codec::CodecSpec spec = codec::parse_codec(text);
    const size_t bytes = static_cast<size_t>(codec::encoded_bytes(spec, kCount));
    std::vector<uint8_t> piece(bytes), narrow(bytes);
    double lost = 0;
    host_->encode({spec, {values.data(), Dtype::kFloat32, kCount}}, piece, &lost);
    uint8_t* const device_piece = on_device(narrow);
    double* const device_lost = on_device(std::vector<double>{0.0});
    tensor_->encode({spec, {on_device(values), Dtype::kFloat32, kCount}}, {device_piece, bytes},
                    device_lost);
    EXPECT_EQ(back(device_piece, static_cast<int64_t>(bytes)), piece) << text;
    EXPECT_EQ(back(device_lost, 1)[0], lost) << text;
    if (spec.kind == codec::CodecKind::kNone) continue;
    std::vector<float> out(kCount, 1.0f);
    float* const device_out = on_device(out);
    for (const bool add : {false, true}) {
      host_->decode(spec, piece, {out.data(), Dtype::kFloat32, kCount}, add);
      tensor_->decode(spec, {device_piece, bytes}, {device_out, Dtype::kFloat32, kCount}, add);
      EXPECT_EQ(back(device_out), out) << text << add;
    }
    const std::vector<std::span<const uint8_t>> pieces(3, piece),
        device_pieces(3, std::span<const uint8_t>(device_piece, bytes));
    host_->decode_sum({spec, pieces, kCount}, {out.data(), Dtype::kFloat32, kCount});
    tensor_->decode_sum({spec, device_pieces, kCount}, {device_out, Dtype::kFloat32, kCount});
    EXPECT_EQ(back(device_out), out) << text << " sum";
  }
}

TEST_P(ArithmeticTest, ErrorFeedbackKeepsTheSameResiduals) {
  const codec::CodecSpec spec = codec::parse_codec("int4/128");
  const size_t bytes = static_cast<size_t>(codec::encoded_bytes(spec, kCount));
  std::vector<float> residual(kCount, 0.0f);
  std::vector<uint8_t> piece(bytes);
  float* const device_residual = on_device(residual);
  uint8_t* const device_piece = on_device(piece);
  for (const bool finite : {true, true, true, false, true}) {
    const std::vector<double> wide = numbers(5, 3.0);
    std::vector<float> values(wide.begin(), wide.end());
    if (!finite) values[77] = std::nanf("");
    host_->encode({spec, {values.data(), Dtype::kFloat32, kCount}, residual}, piece, nullptr);
    tensor_->encode({spec,
                     {on_device(values), Dtype::kFloat32, kCount},
                     {device_residual, static_cast<size_t>(kCount)}},
                    {device_piece, bytes}, nullptr);
    const std::vector<float> kept = back(device_residual);
    for (int64_t i = 0; i < kCount; ++i) ASSERT_NEAR(kept[i], residual[i], 1e-6) << finite << i;
  }
}

TEST_P(ArithmeticTest, ACodecThatTensorsLackNamesTheNearest) {
  const codec::CodecSpec spec = codec::parse_codec("fp8e4m3");
  std::vector<uint8_t> piece(static_cast<size_t>(codec::encoded_bytes(spec, kCount)));
  const std::vector<float> values(kCount, 1.0f);
  try {
    tensor_->encode({spec, {on_device(values), Dtype::kFloat32, kCount}}, piece, nullptr);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("int8"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ArithmeticTest, ::testing::ValuesIn(tensor::test_devices()));

}  // namespace
}  // namespace strait::device
