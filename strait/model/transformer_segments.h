// The segments of the transformer block, on raw buffers of one rank of x and y. The fused block
// (transformer_block.h) is the same pieces on its own table of addresses. Internal to model/.
#pragma once

#include <functional>

#include "strait/kernel/attention.h"
#include "strait/kernel/partial_attention.h"
#include "strait/model/block.h"
#include "strait/model/decoder_blocks.h"
#include "strait/model/operations.h"
#include "strait/model/shared_norm.h"
#include "strait/sequence/attend.h"
#include "strait/shape/segment.h"

namespace strait::model {

/// Offset of a layer's weight and bias (-1: none) in the unit.
struct LayerOffset {
  int64_t weight = 0, bias = -1;
};

template <class T>
class TransformerSegments : public SegmentedBlock {
 public:
  TransformerSegments(const ModelShape& shape, int64_t index, Dtype dtype,
                      std::shared_ptr<const RotaryAngles> angles);

  void forward(const SegmentCall& call, SegmentRange range) const override;
  void backward_input(const SegmentCall& call, SegmentRange range) const override;
  void backward_weight(const SegmentCall& call, SegmentRange range) const override;
  void normalize_again(const SegmentCall& call, Segment norm) const override;
  void pack_keys(const SegmentCall& call, const sequence::KeyPart& part) const override;
  void attend_round(const SegmentCall& call, int64_t round) const override;
  void attend_round_input(const SegmentCall& call, const RingRound& where) const override;
  void add_key_gradient(const SegmentCall& call, const RingRound& where) const override;
  void pack_group(const SegmentCall& call, const GroupRound& where) const override;
  void attend_group(const SegmentCall& call, const GroupRound& where) const override;
  void attend_group_input(const SegmentCall& call, const GroupRound& where) const override;
  void add_group_gradient(const SegmentCall& call, const GroupRound& where) const override;
  void exchange_heads(const SegmentCall& call, RemapStep step,
                      const GroupRound& where) const override;
  void move_rows(const SegmentCall& call, RemapStep step, const RowRange& rows) const override;
  void run_heads(const SegmentCall& call, HeadStep step) const override;

  // One segment, with a place for each of its values; for the fused block and the three above.
  void run_forward(const SegmentCall& call, Segment segment) const;
  void run_backward_input(const SegmentCall& call, Segment segment) const;
  void run_backward_weight(const SegmentCall& call, Segment segment) const;

  BlockExtent extent(const SegmentCall& call) const;
  bool drops(const SegmentCall& call) const { return dropout_ > 0.0 && call.settings->training; }
  /// Queries of `head` and the keys and values that it shares with its group, and where its
  /// results go.
  kernel::AttentionCall<T> attention_call(const SegmentCall& call, int64_t sequence,
                                          int64_t head) const;

 private:
  static T* at(const SegmentCall& call, BlockValue value) { return static_cast<T*>(call[value]); }
  static Wide<T>* wide(const SegmentCall& call, BlockValue value) {
    return static_cast<Wide<T>*>(call[value]);
  }

  // The pieces come in pairs, one for attention and one for the MLP; these say on which values
  // they work.
  struct Norm {
    LayerOffset layer;
    BlockValue x, mean, rstd, y;
    BlockValue y_gradient, residual_gradient, x_gradient, layer_gradient;
    BlockValue moments, gradient_moments;
  };
  struct Linear {
    LayerOffset layer;
    int64_t in = 0, out = 0;
    BlockValue x, y, y_gradient, x_gradient;
    BlockValue kept_x;  // x as backward_weight finds it
    BlockValue sum;     // of qkv and up: y without the bias, where ranks of y sum it
  };
  /// target = base + dropout(sum + bias), or base + norm(sum + bias) with a norm behind the branch.
  struct Add {
    int64_t bias = -1;
    DropoutPlace place;
    BlockValue sum, base, target;
    BlockValue target_gradient, sum_gradient;
    BlockValue branch, rstd, norm_gradient, moments, gradient_moments;
    int64_t norm = -1;  // offset of the weight of the norm behind
  };
  /// The norms of a row's queries or keys: `count` of `width` elements each from column `first` on.
  struct QueryKeyNorms {
    int64_t weight = -1;  // offset in the unit
    int64_t first = 0, count = 0, width = 0;
    int64_t rstd = 0;      // place of the first among the row's
    int64_t gradient = 0;  // place of the weight's among those of both
  };

  // Where the unit holds the layers of each piece.
  void find_attention(const UnitShape& unit);
  void find_query_key_norms(const UnitShape& unit);
  void find_mlp(const UnitShape& unit);

  const T* parameter(const SegmentCall& call, int64_t offset) const {
    return at_offset<T>(call.weights, offset);
  }
  LinearGradient<T> gradient(const SegmentCall& call, const LayerOffset& layer) const;
  DropoutSite site(const SegmentCall& call, DropoutPlace place) const;
  LinearExtent size(const SegmentCall& call, const Linear& linear) const {
    return {extent(call).rows, linear.in, linear.out, 0, 0, call.settings->products};
  }

  static double* exact(const SegmentCall& call, BlockValue value) {
    return static_cast<double*>(call[value]);
  }
  kernel::LayerNormCall<T> norm_call(const SegmentCall& call, const Norm& norm) const;
  kernel::LayerNormCall<T> norm_call(const SegmentCall& call, const Add& add) const;
  kernel::LayerNormBackwardCall<T> norm_backward_call(const SegmentCall& call,
                                                      const Norm& norm) const;
  kernel::LayerNormBackwardCall<T> norm_backward_call(const SegmentCall& call,
                                                      const Add& add) const;
  /// This rank's part of the moments that `value` has, if it has any.
  void sum_moments(const SegmentCall& call, BlockValue value, BlockValue x, bool centered) const;
  void sum_moments(const SegmentCall& call, BlockValue value,
                   const kernel::LayerNormBackwardCall<T>& norm) const;
  void normalize(const SegmentCall& call, const Norm& norm) const;
  void normalize(const SegmentCall& call, const kernel::LayerNormCall<T>& norm,
                 BlockValue moments) const;
  void normalize_backward(const SegmentCall& call, const kernel::LayerNormBackwardCall<T>& norm,
                          BlockValue moments, const LinearGradient<T>& target) const;
  /// y = x, for families without a norm before.
  void pass_on(const SegmentCall& call, const Norm& norm) const;
  void normalize_again(const SegmentCall& call, const Norm& norm) const;
  void begin_branch(const SegmentCall& call, const Linear& linear) const;
  void add_bias(const SegmentCall& call, const Linear& linear) const;
  void end_branch(const SegmentCall& call, const Linear& linear, const Add& add) const;
  void add_joined(const SegmentCall& call, const Linear& linear, const Add& add) const;
  void keep_branch(const SegmentCall& call, const Add& add) const;
  void add(const SegmentCall& call, const Add& add) const;
  // Attention to the keys of all ranks of the axis sequence: transformer_gathered.cpp.
  void attend_gathered(const SegmentCall& call) const;
  void attend_gathered_input(const SegmentCall& call) const;
  kernel::AttentionCall<T> chunk_call(const SegmentCall& call, int64_t sequence, int64_t head,
                                      int64_t half) const;
  void attend_gathered_head(const SegmentCall& call, int64_t sequence, int64_t head) const;
  void attend_gathered_head_input(const SegmentCall& call, int64_t sequence, int64_t head) const;
  // Of some heads and all tokens, or those of neighbours: transformer_heads.cpp.
  /// This rank's heads of a rank's columns: queries, keys, values.
  struct HeadPart {
    int64_t ranks = 1, heads = 0, kv_heads = 0;
    int64_t out_width = 0, width = 0;  // of attention; of queries, keys and values
  };
  HeadPart head_part(const SegmentCall& call) const;
  /// Columns of this rank's tokens, of attention or (with_keys) of queries, keys and values, to or
  /// from those of every rank's heads.
  struct HeadCopy {
    T* columns;
    T* by_rank;
    bool with_keys, to_ranks;
  };
  void copy_heads(const SegmentCall& call, const HeadCopy& copy) const;
  /// kDelta of this rank's tokens for the ranks that have its heads, and of this rank's heads from
  /// all ranks, in order of position.
  void send_deltas(const SegmentCall& call) const;
  void order_deltas(const SegmentCall& call) const;
  /// Rows of all tokens in order of position, from or to those by rank.
  void order_rows(const SegmentCall& call, const T* by_rank, T* ordered, int64_t width) const;
  void split_rows(const SegmentCall& call, const T* ordered, T* by_rank, int64_t width) const;
  kernel::AttentionCall<T> heads_call(const SegmentCall& call, int64_t sequence,
                                      int64_t head) const;
  /// A step among the ranks of the batch, all of which exchange heads.
  void run_head_step(const SegmentCall& call, HeadStep step) const;
  /// Whether rings are of groups of ranks that exchange heads.
  static bool has_head_ring(const SegmentCall& call) {
    return call.batch->head_sharers > 1 && call.batch->head_sharers < call.batch->sharers;
  }
  /// Calls act(block with this rank's heads alone, call with the tokens of its group, which is a
  /// member of a ring).
  using HeadRingStep = std::function<void(const TransformerSegments&, const SegmentCall&)>;
  void run_head_ring(const SegmentCall& call, const HeadRingStep& act) const;
  void attend_heads(const SegmentCall& call) const;
  void attend_heads_input(const SegmentCall& call) const;
  void attend_heads_group(const SegmentCall& call, int64_t item, const T* out_gradient,
                          T* gradient) const;

  // Of documents that a plan spreads over ranks: transformer_documents.cpp.
  /// One head's queries from a row on; keys are the caller's to give.
  sequence::AttendCall<T> group_call(const SegmentCall& call, int64_t first_row,
                                     int64_t head) const;
  /// Of a group whose ranks exchange heads: calls act(block with this rank's heads alone, call with
  /// the rows of all its neighbours, as if one rank had them).
  void run_ring_of_heads(const SegmentCall& call, const GroupRound& where,
                         const HeadRingStep& act) const;
  void move_qkv_gradient(const SegmentCall& call, bool packs, const RowRange& rows) const;
  /// Heads that share keys.
  int64_t sharers() const { return extent_.heads / extent_.kv_heads; }

  // Against the keys of one rank at a time: transformer_ring.cpp.
  void attend_round_head(const SegmentCall& call, int64_t round, int64_t item) const;
  void attend_round_head_input(const SegmentCall& call, const RingRound& where, int64_t item) const;
  /// Keys and values of a round: another rank's alone, or this one's own behind its queries.
  struct RoundKeys {
    const T* keys;
    int64_t stride;
  };
  RoundKeys round_keys(const SegmentCall& call, bool own) const;
  /// The queries of one of the two chunks, and what their gradients are made from.
  kernel::PartialAttentionBackwardCall<T> chunk_gradient(const SegmentCall& call, int64_t sequence,
                                                         int64_t head, int64_t half) const;
  /// Delta of a head's queries; sums of their gradients begin at zero.
  void begin_gradients(const SegmentCall& call, int64_t sequence, int64_t head) const;
  /// Column of the keys that a head shares, in rows of keys and values.
  int64_t key_column(int64_t head) const {
    return head / (extent_.heads / extent_.kv_heads) * extent_.head_width;
  }
  void attend_keys_input(kernel::PartialAttentionBackwardCall<T> part, const T* keys,
                         Wide<T>* gradients) const;
  struct QuerySums {
    Wide<T>* data;
    int64_t stride;
  };
  QuerySums query_sums(const SegmentCall& call, int64_t sequence, int64_t head) const;
  void round_query_gradient(const SegmentCall& call, int64_t sequence, int64_t head) const;
  void take_key_gradient(const SegmentCall& call) const;
  int64_t key_row(const SegmentCall& call, int64_t sequence, int64_t chunk) const;
  void normalize_query_key(const SegmentCall& call) const;
  void rotate(const SegmentCall& call, BlockValue qkv, bool back) const;
  void attend(const SegmentCall& call) const;
  kernel::Gate gate() const {
    return extent_.style.gelu_gate ? kernel::Gate::kGelu : kernel::Gate::kSilu;
  }
  void activate(const SegmentCall& call) const;
  /// Distance of the rows of what is activated: they may lie where the gates were.
  int64_t activated_stride(const SegmentCall& call) const;

  void normalize_input(const SegmentCall& call, const Norm& norm) const;
  void normalize_branch_input(const SegmentCall& call, const Add& add) const;
  void query_key_input(const SegmentCall& call) const;
  void query_key_parameters(const SegmentCall& call, const QueryKeyNorms& part) const;
  void begin_branch_input(const SegmentCall& call, const Linear& linear, const Norm& norm) const;
  void output_input(const SegmentCall& call) const;
  void down_input(const SegmentCall& call) const;
  /// From the gradient of what is activated, where down_input leaves it, to that of up.
  void activate_input(const SegmentCall& call) const;
  void up_add_input(const SegmentCall& call) const;
  void add_input(const SegmentCall& call, const Add& add) const;
  void attend_input(const SegmentCall& call) const;
  void attend_input_group(const SegmentCall& call, int64_t sequence, int64_t head) const;
  void normalize_weight(const SegmentCall& call, const Norm& norm) const;
  void query_key_weight(const SegmentCall& call) const;
  /// Adds or writes a finished gradient to the parameter at `offset`; -1: there is none.
  void put(const SegmentCall& call, const Wide<T>* values, int64_t count, int64_t offset) const;
  void linear_weight(const SegmentCall& call, const Linear& linear, bool bias) const;
  void add_weight(const SegmentCall& call, const Add& add) const;

  /// `call` with workspace for what is not given; InternalError unless the rest is.
  SegmentCall complete(const SegmentCall& call, SegmentRange range, Phase phase) const;

  Dtype dtype_;
  int64_t index_;
  BlockExtent extent_;  // without rows
  double dropout_, norm_eps_;
  Wide<T> norm_from_;  // what norms add to their weights
  int64_t window_;
  double scale_;  // of scores; 0: the kernel's own
  double cap_;    // of scores; 0: none
  std::shared_ptr<const RotaryAngles> angles_;
  Norm attention_norm_, mlp_norm_;
  Linear qkv_, output_, up_, down_;
  Add attention_add_, mlp_add_;
  std::array<QueryKeyNorms, 2> query_key_;
};

extern template class TransformerSegments<float>;
extern template class TransformerSegments<double>;
extern template class TransformerSegments<Bfloat16>;

}  // namespace strait::model
