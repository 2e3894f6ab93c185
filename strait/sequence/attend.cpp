#include "strait/sequence/attend.h"

#include <algorithm>
#include <limits>

#include "strait/kernel/partial_attention.h"

namespace strait::sequence {
namespace {

int64_t rows_of(std::span<const Span> spans) {
  int64_t rows = 0;
  for (const Span& span : spans) rows += span.size();
  return rows;
}

/// A pair of spans that share causal pairs, and the rows at which they begin.
struct Piece {
  Block block;
  int64_t query_row = 0, key_row = 0;
};
template <class T>
std::vector<Piece> pieces_of(const AttendCall<T>& call) {
  std::vector<Piece> pieces;
  int64_t query_row = 0;
  for (const Span& queries : call.query_spans) {
    int64_t key_row = 0;
    for (const Span& keys : call.key_spans) {
      if (const Block block{queries, keys}; block.pairs() > 0)
        pieces.push_back({block, query_row, key_row});
      key_row += keys.size();
    }
    query_row += queries.size();
  }
  return pieces;
}

/// The kernel's view of one head of a piece; log_sum_exp is left to the caller.
template <class T>
kernel::AttentionCall<T> head_call(const AttendCall<T>& call, const Piece& piece, int64_t head) {
  const int64_t column = head * call.heads.width;
  const int64_t key_column = head / (call.heads.queries / call.heads.keys) * call.heads.width;
  return {.queries = piece.block.queries.size(),
          .first = piece.block.queries.begin,
          .head_width = call.heads.width,
          .window = call.window,
          .q = call.q + piece.query_row * call.q_stride + column,
          .q_stride = call.q_stride,
          .k = call.k + piece.key_row * call.kv_stride + key_column,
          .v = call.v + piece.key_row * call.kv_stride + key_column,
          .kv_stride = call.kv_stride,
          .mask = call.mask,
          .head = call.first_head + static_cast<uint64_t>(head),
          .products = call.products,
          .scale = call.scale,
          .cap = call.cap};
}

}  // namespace

template <class T>
void begin_attention(const AttendCall<T>& call, Wide<T>* out, int64_t out_stride) {
  const int64_t rows = rows_of(call.query_spans);
  for (int64_t row = 0; row < rows; ++row)
    std::fill_n(out + row * out_stride, call.heads.query_columns(), Wide<T>{0});
  std::fill_n(call.log_sum_exp, call.heads.queries * rows,
              -std::numeric_limits<Wide<T>>::infinity());
}

template <class T>
int64_t attend(const AttendCall<T>& call, Wide<T>* out, int64_t out_stride) {
  const int64_t rows = rows_of(call.query_spans), width = call.heads.width;
  std::vector<Wide<T>> part(static_cast<size_t>(rows * width)), sums(static_cast<size_t>(rows));
  int64_t pairs = 0;
  for (const Piece& piece : pieces_of(call)) {
    pairs += piece.block.pairs();
    for (int64_t head = 0; head < call.heads.queries; ++head) {
      kernel::AttentionCall<T> one = head_call(call, piece, head);
      one.log_sum_exp = sums.data();
      kernel::partial_attention<T>(
          {one, piece.block.keys.size(), piece.block.keys.begin, part.data(), width});
      kernel::merge_attention<Wide<T>>(
          {one.queries, width, out + piece.query_row * out_stride + head * width, out_stride,
           call.log_sum_exp + head * rows + piece.query_row, part.data(), width, sums.data()});
    }
  }
  return pairs;
}

template <class T>
int64_t attend_backward(const AttendBackwardCall<T>& call) {
  const AttendCall<T>& in = call.forward;
  const int64_t rows = rows_of(in.query_spans), width = in.heads.width;
  int64_t pairs = 0;
  for (const Piece& piece : pieces_of(in)) {
    pairs += piece.block.pairs();
    for (int64_t head = 0; head < in.heads.queries; ++head) {
      kernel::AttentionCall<T> one = head_call(in, piece, head);
      one.log_sum_exp = in.log_sum_exp + head * rows + piece.query_row;
      const int64_t column = head * width;
      const int64_t key_column = head / (in.heads.queries / in.heads.keys) * width;
      const int64_t gradient = piece.key_row * call.kv_gradient_stride + key_column;
      kernel::partial_attention_backward<T>(
          {.rows = one,
           .keys = piece.block.keys.size(),
           .key_first = piece.block.keys.begin,
           .out_gradient = call.out_gradient + piece.query_row * call.out_gradient_stride + column,
           .out_gradient_stride = call.out_gradient_stride,
           .delta = call.delta + head * rows + piece.query_row,
           .dq = call.dq + piece.query_row * call.dq_stride + column,
           .dq_stride = call.dq_stride,
           .dk = call.dk + gradient,
           .dv = call.dv + gradient,
           .kv_gradient_stride = call.kv_gradient_stride});
    }
  }
  return pairs;
}

#define STRAIT_ATTEND(T)                                                     \
  template void begin_attention<T>(const AttendCall<T>&, Wide<T>*, int64_t); \
  template int64_t attend<T>(const AttendCall<T>&, Wide<T>*, int64_t);       \
  template int64_t attend_backward<T>(const AttendBackwardCall<T>&);
STRAIT_ATTEND(float)
STRAIT_ATTEND(double)
STRAIT_ATTEND(Bfloat16)
#undef STRAIT_ATTEND

}  // namespace strait::sequence
