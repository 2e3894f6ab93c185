// Final norm, logits and cross-entropy, in chunks of rows so that no full logits tensor exists.
#include <algorithm>

#include "strait/base/errors.h"
#include "strait/kernel/loss.h"
#include "strait/model/decoder_blocks.h"
#include "strait/model/operations.h"
#include "strait/shape/block_layout.h"

namespace strait::model {
namespace {

template <class T>
class HeadBlock : public Block {
 public:
  HeadBlock(const ModelShape& shape, int64_t index, Dtype dtype)
      : dtype_(dtype),
        vocabulary_(shape.vocabulary),
        width_(shape.options.width),
        norm_eps_(shape.options.norm_eps),
        cap_(shape.options.logit_cap),
        norm_from_(shape.style.norm_from_one ? 1 : 0),
        centered_(!shape.style.rms_norm),
        offsets_(head_offsets(shape, index)) {}

  void forward(const Call&, int, int) const override { refuse(); }
  void backward_input(const Call&, int, int) const override { refuse(); }
  void backward_weight(const Call&, int, int) const override { refuse(); }
  void backward(const Call&) const override { refuse(); }

  void forward_backward(const Call& call) const override {
    check_call(call, dtype_);
    const int64_t rows = call.batch->batch * call.batch->tokens;
    ensure(call.batch->targets != nullptr, "head: the batch has no targets");
    check_targets(*call.batch, vocabulary_);
    const int64_t chunk = head_chunk_rows(vocabulary_, rows);
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      run_chunk(call, begin, std::min(chunk, rows - begin),
                head_layout(chunk, width_, vocabulary_, dtype_));
    }
  }

  /// Logits of the last position of every sequence.
  void forward_cached(const Call& call) const override {
    check_call(call, dtype_);
    const int64_t batch = call.batch->batch, tokens = call.batch->tokens;
    const int64_t chunk = head_chunk_rows(vocabulary_, batch * tokens);
    const HeadLayout layout = head_layout(chunk, width_, vocabulary_, dtype_);
    T* workspace = static_cast<T*>(call.workspace);
    const T* input = static_cast<const T*>(call.input);
    for (int64_t begin = 0; begin < batch; begin += chunk) {
      const int64_t rows = std::min(chunk, batch - begin);
      for (int64_t row = 0; row < rows; ++row) {
        kernel::layer_norm<T>({1, width_, input + ((begin + row + 1) * tokens - 1) * width_,
                               at_offset<T>(call.weights, offsets_.norm_weight),
                               at_offset<T>(call.weights, offsets_.norm_bias),
                               mean_of(workspace, layout), wide(workspace, layout.rstd),
                               workspace + layout.normed + row * width_, norm_eps_, nullptr,
                               norm_from_});
      }
      linear_forward<T>(
          {rows, width_, vocabulary_, 0, 0, call.settings->products},
          {workspace + layout.normed, at_offset<T>(call.weights, offsets_.matrix), nullptr},
          static_cast<Wide<T>*>(call.logits) + begin * vocabulary_, call.settings->threads);
    }
    if (cap_ > 0.0)
      kernel::cap_logits<T>({batch * vocabulary_, static_cast<Wide<T>*>(call.logits), cap_});
  }

 private:
  static Wide<T>* wide(T* workspace, int64_t offset) {
    return reinterpret_cast<Wide<T>*>(workspace + offset);
  }

  Wide<T>* mean_of(T* workspace, const HeadLayout& layout) const {
    return centered_ ? wide(workspace, layout.mean) : nullptr;
  }

  [[noreturn]] static void refuse() {
    throw InternalError("the head runs forward and backward at once: use forward_backward");
  }

  void run_chunk(const Call& call, int64_t begin, int64_t rows, const HeadLayout& layout) const {
    T* workspace = static_cast<T*>(call.workspace);
    const int threads = call.settings->threads;
    const T* input = static_cast<const T*>(call.input) + begin * width_;
    const T* matrix = at_offset<T>(call.weights, offsets_.matrix);
    Wide<T>* logits = wide(workspace, layout.logits);
    Wide<T>*mean = mean_of(workspace, layout), *rstd = wide(workspace, layout.rstd);
    T* normed = workspace + layout.normed;
    norm_forward<T>({rows, width_, input, at_offset<T>(call.weights, offsets_.norm_weight),
                     at_offset<T>(call.weights, offsets_.norm_bias), mean, rstd, normed, norm_eps_,
                     nullptr, norm_from_},
                    threads);
    const kernel::NarrowProducts products = call.settings->products;
    linear_forward<T>({rows, width_, vocabulary_, 0, 0, products}, {normed, matrix, nullptr},
                      logits, threads);
    add_losses(call, begin, rows, layout);
    if (!call.gradient) return;
    const bool accumulate = call.accumulate || begin > 0;
    T* normed_gradient = workspace + layout.normed_gradient;
    const T* slope = reinterpret_cast<const T*>(logits);
    const int64_t stride = vocabulary_ * static_cast<int64_t>(sizeof(Wide<T>) / sizeof(T));
    linear_backward_input<T>({rows, width_, vocabulary_, stride, 0, products}, slope, matrix,
                             normed_gradient, threads);
    linear_backward_weight<T>(
        {rows, width_, vocabulary_, stride, 0, products}, slope, normed,
        {at_offset<Wide<T>>(call.gradient, offsets_.matrix), nullptr, accumulate}, threads);
    norm_backward<T>({rows, width_, input, mean, rstd,
                      at_offset<T>(call.weights, offsets_.norm_weight), normed_gradient, nullptr,
                      static_cast<T*>(call.input_gradient) + begin * width_, norm_from_},
                     {at_offset<Wide<T>>(call.gradient, offsets_.norm_weight),
                      at_offset<Wide<T>>(call.gradient, offsets_.norm_bias), accumulate},
                     threads);
  }

  void add_losses(const Call& call, int64_t begin, int64_t rows, const HeadLayout& layout) const {
    T* workspace = static_cast<T*>(call.workspace);
    double* losses = reinterpret_cast<double*>(workspace + layout.losses);
    const int32_t* targets = call.batch->targets + begin;
    kernel::parallel_ranges(rows, 1, call.settings->threads, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        kernel::cross_entropy<T>({vocabulary_, wide(workspace, layout.logits) + row * vocabulary_,
                                  targets[row], call.gradient != nullptr, call.settings->loss_scale,
                                  losses + row, cap_});
      }
    });
    for (int64_t row = 0; row < rows; ++row) {
      if (targets[row] < 0) continue;
      if (call.loss_sum) *call.loss_sum += losses[row];
      if (call.loss_count) ++*call.loss_count;
    }
  }

  Dtype dtype_;
  int64_t vocabulary_, width_;
  double norm_eps_, cap_;  // cap_: of logits; 0: none
  Wide<T> norm_from_;
  bool centered_;  // LayerNorm; RMSNorm has no mean
  HeadOffsets offsets_;
};

}  // namespace

std::unique_ptr<Block> make_head_block(const ModelShape& shape, int64_t index, Dtype dtype) {
  if (is_shared(shape)) return make_shared_head(shape, index, dtype);
  if (dtype == Dtype::kFloat64) return std::make_unique<HeadBlock<double>>(shape, index, dtype);
  if (dtype == Dtype::kBfloat16) return std::make_unique<HeadBlock<Bfloat16>>(shape, index, dtype);
  return std::make_unique<HeadBlock<float>>(shape, index, dtype);
}

}  // namespace strait::model
