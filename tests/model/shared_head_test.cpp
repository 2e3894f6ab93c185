// The head of a model that ranks share multiplies by what its settings name.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "strait/model/decoder_blocks.h"
#include "strait/model/operations.h"
#include "strait/shape/ends.h"
#include "strait/shape/split.h"
#include "tests/model/runner.h"

namespace strait::model {
namespace {

using kernel::NarrowProducts;

/// The first of two ranks of x; the other adds nothing.
class SharedHeadRank {
 public:
  explicit SharedHeadRank(NarrowProducts products)
      : shape_(local_shape(case_.shape(), 2)),
        head_(std::ssize(shape_.blocks) - 1),
        input_(random_input(case_, 3)),
        runner_(shape_, input_, random_units(shape_, 5)),
        x_(convert<Bfloat16>(random_values(rows() * width(), 7))),
        input_gradient_(x_.size()),
        gradient_(static_cast<size_t>(
            shape_.units[static_cast<size_t>(shape_.blocks.back().unit)].elements)) {
    runner_.settings.products = products;
    for (int number = 0; number < kNumEndValues; ++number) {
      const auto value = static_cast<EndValue>(number);
      auto& buffer = buffers_[static_cast<size_t>(number)];
      buffer.resize(static_cast<size_t>(end_value_elements(value, shape_, rows()) *
                                        dtype_bytes(end_value_dtype(value, Dtype::kBfloat16))));
      values_[static_cast<size_t>(number)] = buffer.data();
    }
  }

  void run(EndStep step) {
    Call call = runner_.call(head_);
    call.input = x_.data();
    call.input_gradient = input_gradient_.data();
    call.gradient = gradient_.data();
    runner_.model.block(head_).run_step(call, step, values_);
  }
  int64_t rows() const { return case_.batch * case_.tokens; }
  int64_t width() const { return case_.options.width; }
  int64_t vocabulary() const { return case_.vocabulary / 2; }
  const Bfloat16* matrix() { return at_offset<Bfloat16>(runner_.call(head_).weights, offset()); }
  const float* matrix_gradient() { return gradient_.data() + offset(); }
  template <class V>
  const V* get(EndValue value) const {
    return static_cast<const V*>(values_[static_cast<size_t>(value)]);
  }

 private:
  int64_t offset() const { return head_offsets(shape_, head_).matrix; }

  const Case case_{{1, 2, 2, 256, 22, 33, true, 0.0, false}, 64, 1, 33};
  const ModelShape shape_;
  const int64_t head_;
  const ReferenceInput input_;
  Runner<Bfloat16> runner_;
  const std::vector<Bfloat16> x_;
  std::vector<Bfloat16> input_gradient_;
  std::vector<float> gradient_;
  std::array<std::vector<char>, kNumEndValues> buffers_;
  EndValues values_{};
};

template <class V>
void expect_bits(const V* got, const std::vector<V>& want, const char* what) {
  EXPECT_EQ(std::memcmp(got, want.data(), want.size() * sizeof(V)), 0) << what;
}

/// Logits; each product has the bits of the same product by itself.
std::vector<float> expect_products(NarrowProducts products) {
  SharedHeadRank head(products);
  const int64_t rows = head.rows(), width = head.width(), vocabulary = head.vocabulary();
  head.run(EndStep::kLogits);
  const auto* normed = head.get<Bfloat16>(EndValue::kNormed);
  std::vector<float> logits(static_cast<size_t>(rows * vocabulary));
  linear_forward<Bfloat16>({rows, width, vocabulary, 0, 0, products},
                           {normed, head.matrix(), nullptr}, logits.data(), 1);
  expect_bits(head.get<float>(EndValue::kLogits), logits, "logits");
  head.run(EndStep::kParts);
  head.run(EndStep::kLoss);
  const LinearExtent back{rows, width, vocabulary, 2 * vocabulary, 0, products};
  const auto* slopes = head.get<Bfloat16>(EndValue::kLogits);
  std::vector<Bfloat16> normed_gradient(static_cast<size_t>(rows * width));
  linear_backward_input<Bfloat16>(back, slopes, head.matrix(), normed_gradient.data(), 1);
  expect_bits(head.get<Bfloat16>(EndValue::kNormedGradient), normed_gradient, "input");
  head.run(EndStep::kGradient);
  std::vector<float> gradient(static_cast<size_t>(vocabulary * width));
  linear_backward_weight<Bfloat16>(back, slopes, normed, {gradient.data(), nullptr, false}, 1);
  expect_bits(head.matrix_gradient(), gradient, "weights");
  return logits;
}

TEST(SharedHead, MultipliesAsItsSettingsSay) {
  const std::vector<float> widened = expect_products(NarrowProducts::kWidened);
  EXPECT_NE(expect_products(NarrowProducts::kPlainTiles), widened) << "tells nothing apart";
}

}  // namespace
}  // namespace strait::model
