// What one rank computes of distributed attention, on raw rows: its queries against a block of
// keys, wherever that comes from. A ring calls it once per round with the keys of one member, an
// engine that gathers keys once with all of them, one that exchanges heads once with all tokens of
// its heads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strait/base/bfloat16.h"
#include "strait/kernel/dropout.h"
#include "strait/kernel/products.h"
#include "strait/sequence/chunks.h"
#include "strait/sequence/traffic.h"

namespace strait::sequence {

/// Rows of one document. Row i of q is the i-th position of `query_spans`, row i of k and v the
/// i-th of `key_spans`: positions follow the token. Query head n uses key head n / (queries /
/// keys).
template <class T>
struct AttendCall {
  std::span<const Span> query_spans, key_spans;
  Heads heads;
  int64_t window = 0;  // 0: none
  const T* q = nullptr;
  int64_t q_stride = 0;
  const T* k = nullptr;
  const T* v = nullptr;
  int64_t kv_stride = 0;
  Wide<T>* log_sum_exp = nullptr;  // [heads, rows of q]
  const kernel::DropoutMask* mask = nullptr;
  uint64_t first_head = 0;  // number of head 0 of this call in the model and batch, for the mask
  kernel::NarrowProducts products = kernel::NarrowProducts::kAutomatic;  // bf16 only
  double scale = 0.0;  // of scores, as kernel::AttentionCall's; so is the cap
  double cap = 0.0;
};

/// Nothing has been attended yet: out = 0, log_sum_exp = minus infinity.
template <class T>
void begin_attention(const AttendCall<T>& call, Wide<T>* out, int64_t out_stride);

/// Merges the attention to these keys into (out, log_sum_exp), spans in order: the bits depend on
/// the order of calls alone. A first call with all keys gives the bits of kernel::attention.
/// Returns the pairs that were computed, of one head; pairs of spans in which nothing is attended
/// are skipped.
template <class T>
int64_t attend(const AttendCall<T>& call, Wide<T>* out, int64_t out_stride);

/// `forward.log_sum_exp` is the merged one; delta [heads, rows of q] belongs to the merged output
/// (kernel::attention_delta). dq, dk and dv are added to; rows as those of q and k.
template <class T>
struct AttendBackwardCall {
  AttendCall<T> forward;
  const T* out_gradient = nullptr;
  int64_t out_gradient_stride = 0;
  const Wide<T>* delta = nullptr;
  Wide<T>* dq = nullptr;
  int64_t dq_stride = 0;
  Wide<T>* dk = nullptr;
  Wide<T>* dv = nullptr;
  int64_t kv_gradient_stride = 0;
};
template <class T>
int64_t attend_backward(const AttendBackwardCall<T>& call);

}  // namespace strait::sequence
