// Final norm, logits and cross-entropy of a model that ranks share: of the vocabulary a rank has
// the rows of its place along x, of the width the columns of its place along y (shape/ends.h).
#include <algorithm>
#include <cmath>
#include <limits>

#include "strait/base/errors.h"
#include "strait/kernel/loss.h"
#include "strait/model/decoder_blocks.h"
#include "strait/model/operations.h"
#include "strait/model/shared_norm.h"

namespace strait::model {
namespace {

/// A row's maximum and sum of exponentials over all ranks of x, and the logit of its target.
struct WholeRow {
  double maximum = 0.0, sum = 0.0, chosen = 0.0;
  double loss() const { return std::log(sum) + (maximum - chosen); }
};

/// parts: [ranks, rows, 3]
WholeRow whole_row(const double* parts, int64_t ranks, int64_t rows, int64_t row) {
  WholeRow whole{-std::numeric_limits<double>::infinity()};
  const auto part = [&](int64_t rank) { return parts + (rank * rows + row) * 3; };
  for (int64_t rank = 0; rank < ranks; ++rank)
    whole.maximum = std::max(whole.maximum, part(rank)[0]);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    whole.sum += part(rank)[1] * std::exp(part(rank)[0] - whole.maximum);
    whole.chosen += part(rank)[2];
  }
  return whole;
}

template <class T>
class SharedHead : public Block {
 public:
  SharedHead(const ModelShape& shape, int64_t index, Dtype dtype)
      : dtype_(dtype),
        x_(shape.x),
        y_(shape.y),
        row_split_(shape.splits_rows ? shape.x : 1),
        whole_vocabulary_(shape.vocabulary),
        vocabulary_(shape.vocabulary / shape.x),
        width_(shape.options.width / shape.y),
        norm_eps_(shape.options.norm_eps),
        cap_(shape.options.logit_cap),
        norm_from_(shape.style.norm_from_one ? 1 : 0),
        centered_(!shape.style.rms_norm),
        offsets_(head_offsets(shape, index)) {}

  void forward(const Call&, int, int) const override { refuse(); }
  void backward_input(const Call&, int, int) const override { refuse(); }
  void backward_weight(const Call&, int, int) const override { refuse(); }
  void backward(const Call&) const override { refuse(); }
  void forward_backward(const Call&) const override { refuse(); }
  void forward_cached(const Call&) const override { refuse(); }

  void run_step(const Call& call, EndStep step, const EndValues& values) const override {
    check_call(call, dtype_);
    switch (step) {
      case EndStep::kMoments:
        return row_moments<T>(own_rows(call), width_, static_cast<const T*>(call.input), centered_,
                              at<double>(values, EndValue::kMoments), call.settings->threads);
      case EndStep::kNorm:
        return normalize(call, values);
      case EndStep::kLogits:
        return logits(call, values);
      case EndStep::kParts:
        return parts(call, values);
      case EndStep::kLoss:
        return loss(call, values);
      case EndStep::kSlopes:
        return gradient_moments<T>(norm_backward_call(call, values),
                                   at<double>(values, EndValue::kGradientMoments),
                                   call.settings->threads);
      case EndStep::kNormGradient:
        return norm_gradient(call, values);
      case EndStep::kGradient:
        return gradients(call, values);
      case EndStep::kLookUp:
      case EndStep::kEmbed:
        break;
    }
    throw InternalError("head: a step of the embedding");
  }

 private:
  [[noreturn]] static void refuse() {
    throw InternalError("a head that ranks share runs by its steps");
  }

  template <class V>
  static V* at(const EndValues& values, EndValue value) {
    return static_cast<V*>(values[static_cast<size_t>(value)]);
  }
  static int64_t rows(const Call& call) { return call.batch->batch * call.batch->tokens; }
  /// This rank's, where rows are split.
  int64_t own_rows(const Call& call) const { return rows(call) / row_split_; }
  Wide<T>* mean_of(const Call& call, const EndValues& values) const {
    return centered_ ? at<Wide<T>>(values, EndValue::kStatistics) + own_rows(call) : nullptr;
  }
  /// Of the row's target in this rank's part of the vocabulary, or -1.
  int64_t target_of(const Call& call, int64_t row) const {
    const int32_t target = call.batch->targets[row];
    const int64_t local = target - call.part.x * vocabulary_;
    return target >= 0 && 0 <= local && local < vocabulary_ ? local : -1;
  }

  void normalize(const Call& call, const EndValues& values) const {
    const int threads = call.settings->threads;
    const kernel::LayerNormCall<T> norm{own_rows(call),
                                        width_,
                                        static_cast<const T*>(call.input),
                                        at_offset<T>(call.weights, offsets_.norm_weight),
                                        at_offset<T>(call.weights, offsets_.norm_bias),
                                        mean_of(call, values),
                                        at<Wide<T>>(values, EndValue::kStatistics),
                                        at<T>(values, EndValue::kNormed),
                                        norm_eps_,
                                        nullptr,
                                        norm_from_};
    if (y_ > 1)
      norm_from_moments<T>(norm, width_ * y_, at<double>(values, EndValue::kMoments), threads);
    else
      norm_forward<T>(norm, threads);
  }

  void logits(const Call& call, const EndValues& values) const {
    ensure(call.batch->targets != nullptr, "head: the batch has no targets");
    check_targets(*call.batch, whole_vocabulary_);
    if (row_split_ == 1) normalize(call, values);
    linear_forward<T>(
        {rows(call), width_, vocabulary_, 0, 0, call.settings->products},
        {at<T>(values, EndValue::kNormed), at_offset<T>(call.weights, offsets_.matrix), nullptr},
        at<Wide<T>>(values, EndValue::kLogits), call.settings->threads);
  }

  /// In the place of this rank; the others' are zeros, so that a sum over x puts them together.
  void parts(const Call& call, const EndValues& values) const {
    const int64_t count = rows(call);
    double* all = at<double>(values, EndValue::kParts);
    std::fill_n(all, x_ * count * 3, 0.0);
    double* own = all + call.part.x * count * 3;
    const Wide<T>* logits = at<Wide<T>>(values, EndValue::kLogits);
    kernel::parallel_ranges(count, 1, call.settings->threads, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        kernel::loss_part<T>(
            {vocabulary_, logits + row * vocabulary_, target_of(call, row), own + row * 3, cap_});
    });
  }

  /// The loss, and with a place for it the gradient of what the logits are made from.
  void loss(const Call& call, const EndValues& values) const {
    const int64_t count = rows(call);
    const double* all = at<double>(values, EndValue::kParts);
    for (int64_t row = 0; call.loss_sum && row < count; ++row)
      if (call.batch->targets[row] >= 0) *call.loss_sum += whole_row(all, x_, count, row).loss();
    T* normed_gradient = at<T>(values, EndValue::kNormedGradient);
    if (!normed_gradient) return;
    Wide<T>* logits = at<Wide<T>>(values, EndValue::kLogits);
    const int threads = call.settings->threads;
    kernel::parallel_ranges(count, 1, threads, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const WholeRow whole = whole_row(all, x_, count, row);
        kernel::loss_slope<T>({vocabulary_, logits + row * vocabulary_, target_of(call, row),
                               call.batch->targets[row] >= 0, whole.maximum, whole.sum,
                               call.settings->loss_scale, cap_});
      }
    });
    linear_backward_input<T>(slopes(call), reinterpret_cast<const T*>(logits),
                             at_offset<T>(call.weights, offsets_.matrix), normed_gradient, threads);
  }

  /// The slopes lie where the wider logits were.
  LinearExtent slopes(const Call& call) const {
    const int64_t stride = vocabulary_ * static_cast<int64_t>(sizeof(Wide<T>) / sizeof(T));
    return {rows(call), width_, vocabulary_, stride, 0, call.settings->products};
  }

  kernel::LayerNormBackwardCall<T> norm_backward_call(const Call& call,
                                                      const EndValues& values) const {
    return {own_rows(call),
            width_,
            static_cast<const T*>(call.input),
            mean_of(call, values),
            at<Wide<T>>(values, EndValue::kStatistics),
            at_offset<T>(call.weights, offsets_.norm_weight),
            at<T>(values, EndValue::kNormedGradient),
            nullptr,
            static_cast<T*>(call.input_gradient),
            norm_from_};
  }

  void gradients(const Call& call, const EndValues& values) const {
    linear_backward_weight<T>(
        slopes(call), at<T>(values, EndValue::kLogits), at<T>(values, EndValue::kNormed),
        {at_offset<Wide<T>>(call.gradient, offsets_.matrix), nullptr, call.accumulate},
        call.settings->threads);
    if (row_split_ == 1) return norm_gradient(call, values);
    const Wide<T>* summed = at<Wide<T>>(values, EndValue::kNormWeights);
    put(call, summed, offsets_.norm_weight);
    put(call, summed + width_, offsets_.norm_bias);
  }

  void put(const Call& call, const Wide<T>* values, int64_t offset) const {
    Wide<T>* to = at_offset<Wide<T>>(call.gradient, offset);
    for (int64_t c = 0; to && c < width_; ++c)
      to[c] = call.accumulate ? to[c] + values[c] : values[c];
  }

  /// The input's, and those of the norm, or a part of their sum over the ranks that split rows.
  void norm_gradient(const Call& call, const EndValues& values) const {
    const int threads = call.settings->threads;
    Wide<T>* part = at<Wide<T>>(values, EndValue::kNormWeights);
    const LinearGradient<T> norm =
        part ? LinearGradient<T>{part, part + width_, false}
             : LinearGradient<T>{at_offset<Wide<T>>(call.gradient, offsets_.norm_weight),
                                 at_offset<Wide<T>>(call.gradient, offsets_.norm_bias),
                                 call.accumulate};
    const auto backward = norm_backward_call(call, values);
    if (y_ > 1)
      return norm_backward_from_moments<T>(
          backward, width_ * y_, at<double>(values, EndValue::kGradientMoments), norm, threads);
    norm_backward<T>(backward, norm, threads);
  }

  Dtype dtype_;
  int64_t x_, y_, row_split_, whole_vocabulary_, vocabulary_, width_;
  double norm_eps_, cap_;  // cap_: of logits; 0: none
  Wide<T> norm_from_;
  bool centered_;  // LayerNorm; RMSNorm has no mean
  HeadOffsets offsets_;
};

}  // namespace

std::unique_ptr<Block> make_shared_head(const ModelShape& shape, int64_t index, Dtype dtype) {
  if (dtype == Dtype::kFloat64) return std::make_unique<SharedHead<double>>(shape, index, dtype);
  if (dtype == Dtype::kBfloat16) return std::make_unique<SharedHead<Bfloat16>>(shape, index, dtype);
  return std::make_unique<SharedHead<float>>(shape, index, dtype);
}

}  // namespace strait::model
