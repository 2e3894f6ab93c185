// Token and, where the family has it, position embedding: look-up forward, scatter-add backward.
#include <fmt/format.h>

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/model/decoder_blocks.h"
#include "strait/model/operations.h"

namespace strait::model {
namespace {

template <class T>
class EmbeddingBlock : public Block {
 public:
  EmbeddingBlock(const ModelShape& shape, int64_t index, Dtype dtype)
      : dtype_(dtype),
        index_(index),
        vocabulary_(shape.vocabulary),
        rows_(shape.vocabulary / shape.x),
        row_split_(shape.splits_rows ? shape.x : 1),
        context_(shape.options.context),
        width_(shape.options.width / shape.y),
        whole_width_(shape.options.width),
        dropout_(shape.options.dropout),
        scale_(static_cast<T>(static_cast<Wide<T>>(embedding_scale(shape)))),
        tied_(shape.options.tied_head) {
    const UnitShape& unit =
        shape.units[static_cast<size_t>(shape.blocks[static_cast<size_t>(index)].unit)];
    token_ = unit.parameter("embedding.token.weight").offset;
    position_ = parameter_offset(unit, "embedding.position.weight");
    ensure(scale_ == 1 || position_ < 0, "embedding: positions beside scaled rows");
  }

  void forward(const Call& call, int, int) const override { embed(call, 0); }
  void forward_cached(const Call& call) const override { embed(call, call.position); }
  void run_step(const Call& call, EndStep step, const EndValues& values) const override {
    T* sum = static_cast<T*>(values[static_cast<size_t>(EndValue::kEmbeddingSum)]);
    if (step == EndStep::kLookUp) return look_up(call, sum);
    ensure(step == EndStep::kEmbed, "embedding: a step of the head");
    check_call(call, dtype_);
    add_positions(call, 0, sum);
  }

  void backward_input(const Call& call, int, int) const override {
    check_call(call, dtype_);
    mask_gradient(call, static_cast<T*>(call.bundle));
  }
  void backward_weight(const Call& call, int, int) const override {
    check_call(call, dtype_);
    add_gradients(call, static_cast<const T*>(call.bundle));
  }
  void backward(const Call& call) const override {
    check_call(call, dtype_);
    const T* gradient = static_cast<const T*>(call.output_gradient);
    if (dropout_ > 0.0) {
      mask_gradient(call, static_cast<T*>(call.workspace));
      gradient = static_cast<const T*>(call.workspace);
    }
    add_gradients(call, gradient);
  }
  void forward_backward(const Call&) const override {
    throw InternalError("the embedding has no forward_backward; it belongs to the head");
  }

 private:
  DropoutSite site(const Call& call, int64_t first_token) const {
    return {call.settings->seed,
            DropoutPlace::kEmbedding,
            static_cast<uint64_t>(index_),
            call.settings->training ? dropout_ : 0.0,
            call.batch->batch,
            call.batch->share(),
            first_token,
            call.batch->sequences,
            call.part.y * width_,
            whole_width_};
  }

  /// Row of a token in this rank's part of the matrix; null where it is another rank's.
  template <class Row>
  Row* row_of(Row* matrix, int32_t token, const RankPart& part) const {
    const int64_t row = token - part.x * rows_;
    return 0 <= row && row < rows_ ? matrix + row * width_ : nullptr;
  }

  /// This rank's part of a sum: the tokens of its rows.
  void look_up(const Call& call, T* sum) const {
    check_call(call, dtype_);
    const Batch& batch = *call.batch;
    check_tokens(batch, vocabulary_);
    const T* matrix = at_offset<T>(call.weights, token_);
    kernel::parallel_ranges(batch.batch * batch.tokens, 1, call.settings->threads,
                            [&](int64_t begin, int64_t end) {
                              for (int64_t row = begin; row < end; ++row) {
                                T* to = sum + row * width_;
                                const T* from = row_of(matrix, batch.inputs[row], call.part);
                                if (from)
                                  std::copy_n(from, width_, to);
                                else
                                  std::fill_n(to, width_, static_cast<T>(0.0F));
                              }
                            });
  }

  /// Rows of the batch that a rank has, where they are split.
  DropoutSite::Rows own_rows(const Call& call) const {
    const int64_t count = call.batch->batch * call.batch->tokens / row_split_;
    return {row_split_ > 1 ? call.part.x * count : 0, count};
  }

  /// Positions and dropout behind the sum.
  void add_positions(const Call& call, int64_t first_token, const T* sum) const {
    check_context(*call.batch, first_token);
    const DropoutSite::Rows rows = own_rows(call);
    add_to_rows(call, first_token, rows,
                [&](int64_t row) { return sum + (row - rows.first) * width_; });
  }

  void scale_row(const T* from, T* to) const {
    for (int64_t c = 0; c < width_; ++c)
      to[c] = static_cast<T>(static_cast<Wide<T>>(from[c]) * scale_);
  }

  /// output = scale rows + positions, then dropout.
  template <class RowAt>
  void add_to_rows(const Call& call, int64_t first_token, const DropoutSite::Rows& rows,
                   const RowAt& row_at) const {
    const Batch& batch = *call.batch;
    const T* position = at_offset<T>(call.weights, position_);
    T* output = static_cast<T*>(call.output);
    const int threads = call.settings->threads;
    kernel::parallel_ranges(rows.count, 1, threads, [&](int64_t begin, int64_t end) {
      for (int64_t own = begin; own < end; ++own) {
        const int64_t row = rows.first + own;
        const int64_t place = first_token + batch.position(row);
        const T* at = position ? position + place * width_ : nullptr;
        T* to = output + own * width_;
        if (scale_ == 1) kernel::add_bias<T>({1, width_, row_at(row), at, to});
        if (scale_ != 1) scale_row(row_at(row), to);
      }
    });
    DropoutSite where = site(call, first_token);
    where.rows = rows;
    if (where.rate > 0.0) drop<T>(where, {width_, output, nullptr, output}, threads);
  }

  void check_context(const Batch& batch, int64_t first_token) const {
    int64_t end = first_token + batch.share().length();
    if (end > context_ && (batch.document_starts || batch.layout)) {
      end = 0;
      for (int64_t row = 0; row < batch.batch * batch.tokens; ++row)
        end = std::max(end, first_token + batch.position(row) + 1);
    }
    if (end > context_)
      throw UserError(fmt::format("a sequence of {} tokens is longer than model.shape.context = {}",
                                  end, context_));
  }

  void embed(const Call& call, int64_t first_token) const {
    check_call(call, dtype_);
    ensure(rows_ == vocabulary_, "embedding: ranks that share the vocabulary run it in steps");
    const Batch& batch = *call.batch;
    check_context(batch, first_token);
    check_tokens(batch, vocabulary_);
    const T* token = at_offset<T>(call.weights, token_);
    add_to_rows(call, first_token, {0, batch.batch * batch.tokens},
                [&](int64_t row) { return token + batch.inputs[row] * width_; });
  }

  void mask_gradient(const Call& call, T* target) const {
    const T* gradient = static_cast<const T*>(call.output_gradient);
    const DropoutSite where = site(call, 0);
    if (where.rate > 0.0) {
      drop<T>(where, {width_, gradient, nullptr, target}, call.settings->threads);
    } else {
      std::copy_n(gradient, call.batch->batch * call.batch->tokens * width_, target);
    }
  }

  /// Threads own columns, so every sum runs over the rows in order whatever their number.
  void add_gradients(const Call& call, const T* gradient) const {
    Wide<T>* token = at_offset<Wide<T>>(call.gradient, token_);
    Wide<T>* position = at_offset<Wide<T>>(call.gradient, position_);
    const int threads = call.settings->threads;
    if (!call.accumulate) {
      // Tied: the head has overwritten the token gradient before.
      if (!tied_) zero(token, rows_ * width_, threads);
      if (position) zero(position, context_ * width_, threads);
    }
    kernel::parallel_ranges(width_, 64, threads, [&](int64_t begin, int64_t end) {
      const Batch& batch = *call.batch;
      for (int64_t row = 0; row < batch.batch * batch.tokens; ++row) {
        const T* from = gradient + row * width_;
        Wide<T>* to_token = row_of(token, batch.inputs[row], call.part);
        for (int64_t c = begin; to_token && c < end; ++c) to_token[c] += scale_ * from[c];
        if (!position) continue;
        Wide<T>* to_position = position + batch.position(row) * width_;
        for (int64_t c = begin; c < end; ++c) to_position[c] += from[c];
      }
    });
  }

  static void zero(Wide<T>* to, int64_t count, int threads) {
    kernel::parallel_ranges(count, 4096, threads, [&](int64_t begin, int64_t end) {
      std::fill(to + begin, to + end, Wide<T>{0});
    });
  }

  Dtype dtype_;
  int64_t index_, vocabulary_, rows_, row_split_, context_, width_, whole_width_;
  double dropout_;
  Wide<T> scale_;  // of token rows, a number of T
  bool tied_;
  int64_t token_ = 0, position_ = -1;
};

}  // namespace

std::unique_ptr<Block> make_embedding_block(const ModelShape& shape, int64_t index, Dtype dtype) {
  if (dtype == Dtype::kFloat64)
    return std::make_unique<EmbeddingBlock<double>>(shape, index, dtype);
  if (dtype == Dtype::kBfloat16)
    return std::make_unique<EmbeddingBlock<Bfloat16>>(shape, index, dtype);
  return std::make_unique<EmbeddingBlock<float>>(shape, index, dtype);
}

}  // namespace strait::model
