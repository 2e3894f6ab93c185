// What the runtime needs of a model: each block's compute on local buffers. Blocks know no ranks
// and call no collectives. Hand-written blocks run without autograd; AutogradBlock wraps a LibTorch
// module.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/kernel/products.h"
#include "strait/sequence/chunks.h"
#include "strait/sequence/rank_layout.h"
#include "strait/shape/element_runs.h"
#include "strait/shape/ends.h"
#include "strait/shape/segment.h"
#include "strait/shape/shape.h"

namespace strait::model {

/// A micro-batch on the host. Rows are sequences, or where several ranks share them this rank's
/// tokens of each; `targets` may hold -1 = not counted.
struct Batch {
  int64_t batch = 0, tokens = 0;     // B sequences of T tokens
  const int32_t* inputs = nullptr;   // [B, T]
  const int32_t* targets = nullptr;  // [B, T]
  const int32_t* document_starts =
      nullptr;                         // [B, T] first position of the token's document, or null
  const int64_t* sequences = nullptr;  // [B] index of the sequence in the run, for random streams
  int64_t sharers = 1, sharer = 0;     // ranks that share every sequence, and which this one is
  int64_t head_sharers = 1;            // neighbours of them among whom heads are exchanged
  /// Of a batch whose documents a plan has spread over the sharers; else null.
  const sequence::RankLayout* layout = nullptr;
  /// [B, T * sharers] document_starts of whole sequences, where heads are exchanged; else null.
  const int32_t* row_starts = nullptr;
  sequence::Share share() const { return {sharers, sharer, tokens}; }
  /// Where row `row` of [B, T] stands in its document or, without documents, in its sequence.
  int64_t position(int64_t row) const {
    if (layout)  // of attention or of linear modules: both are the first ones
      return row < std::ssize(layout->positions) ? layout->positions[static_cast<size_t>(row)] : 0;
    return share().position(row % tokens) - (document_starts ? document_starts[row] : 0);
  }
};

/// UserError naming the first token outside the vocabulary. The batch lies in host memory.
void check_tokens(const Batch& batch, int64_t vocabulary);
/// The same for targets, where -1 is not counted.
void check_targets(const Batch& batch, int64_t vocabulary);

/// Everything that decides the numbers besides the buffers.
struct Settings {
  Dtype dtype = Dtype::kFloat32;  // fp32, fp64 or bf16
  int threads = 1;                // compute threads of this rank
  uint64_t seed = 0;              // dropout streams: (seed, block, sequence, element)
  bool training = true;           // dropout acts
  double loss_scale = 1.0;        // gradients are those of loss_scale * (sum of token losses)
  /// What multiplies matrices of bf16 and fp32.
  kernel::NarrowProducts products = kernel::NarrowProducts::kAutomatic;
};

/// Which part of every block a rank of the axes x and y holds.
struct RankPart {
  int64_t x = 0, y = 0;
};

/// What passes between the steps of shared ends, by EndValue.
using EndValues = std::array<void*, kNumEndValues>;

/// Buffers of one call. Null = not part of this call. Elements have Settings::dtype, but for bf16
/// those marked * have fp32: gradients of weights are made and summed up in fp32, logits leave in
/// fp32. Every sum inside a block (products, norms, softmax, loss) is fp32 then; saved, bundle and
/// workspace hold statistics and norm gradients in fp32, activations and their gradients in bf16,
/// each rounded once where it is written. `weights` are bf16 throughout, vectors included. In
/// place: `output` may not alias `input`; `input_gradient` may equal `output_gradient`.
struct Call {
  const Settings* settings = nullptr;
  const Batch* batch = nullptr;
  const void* weights = nullptr;          // flat unit
  const void* input = nullptr;            // [B, T, C]
  void* output = nullptr;                 // [B, T, C]
  void* saved = nullptr;                  // BlockSizes::saved_bytes; null = keep nothing
  const void* output_gradient = nullptr;  // [B, T, C]
  void* input_gradient = nullptr;         // [B, T, C]
  void* gradient = nullptr;               // * flat unit
  bool accumulate = false;        // add to `gradient` instead of overwriting the block's parameters
  void* bundle = nullptr;         // BlockSizes::bundle_bytes
  void* workspace = nullptr;      // forward_ or backward_workspace_bytes
  double* loss_sum = nullptr;     // head: += sum of token losses (unscaled), in target order
  int64_t* loss_count = nullptr;  // head: += counted targets
  void* cache = nullptr;          // key/value cache of this block (cache_bytes)
  int64_t cache_capacity = 0;     // tokens per sequence that the cache holds
  int64_t position = 0;           // cached forward: tokens already in the cache
  void* logits = nullptr;         // * head, generation: [B, vocabulary] of the last position
  RankPart part = {};             // embedding and head of a model that ranks share
};

/// Buffers of one call of neighbouring segments (shape/segment.h), on one of the ranks that share a
/// block. Give what range_uses says the range reads, and what it writes that is of use afterwards;
/// the rest lies in the workspace. Nothing writes to a value that is only read.
///
/// Two values may share memory in these cases:
/// * output and middle, unless dropout acts
/// * input_gradient, middle_gradient and output_gradient, as in Call, once nobody reads the older
/// * without dropout down_sum_gradient and output_gradient, output_sum_gradient and
///   middle_gradient; with or without, kept_attention and attention: no copy is made then
/// * activated and up, in a forward that keeps nothing
///
/// Two values may be left out. Without a place for a norm's gradient, backward_input writes it to
/// `gradient` and backward_weight does nothing for it. Without kept_attention no copy is made.
struct SegmentCall {
  const Settings* settings = nullptr;
  const Batch* batch = nullptr;   // of this rank: its sequences, its tokens
  const void* weights = nullptr;  // flat local unit
  void* gradient = nullptr;       // flat local unit, fp32 beside bf16
  bool accumulate = false;   // add to `gradient` instead of overwriting the segments' parameters
  int64_t position = 0;      // number of the first token in its sequence, where none is shared
  int64_t first_head = 0;    // number of this rank's first head in the block
  int64_t first_column = 0;  // of the residual stream, number of this rank's first column
  int64_t first_row = 0;     // where rows are split, number of this rank's first between products
  std::array<void*, kNumBlockValues> values{};
  void* workspace = nullptr;  // workspace_offsets(..., given()).elements
  void* operator[](BlockValue value) const { return values[value_index(value)]; }
  void give(BlockValue value, const void* address) {
    values[value_index(value)] = const_cast<void*>(address);
  }
  /// Gives all values of `offsets` their places from `base` on, in elements of `dtype`.
  void give(const ValueOffsets& offsets, const void* base, Dtype dtype);
  ValueSet given() const;
};

/// Which part of a ring's backward a call is for.
struct RingRound {
  int64_t round = 0;
  sequence::KeyPart part = {};
  sequence::OwnPairs pairs = sequence::OwnPairs::kAll;
};

/// Which part of attention by documents a call is for: a round of a group of the batch's layout.
using GroupRound = sequence::EngineStep;

/// A block cut into segments. It knows no ranks and calls no collective: with x or y > 1 the caller
/// sums what partial_over_x and partial_over_y name, and where rows are split gives values that are
/// exchanged by rows (segment.h) to segments between products with this rank's rows, to products
/// with all. Thread-safe: all state is in the call.
///
/// Joined segments (RangeUses) equal the fused block bit for bit. Single ones do so while output
/// and down are at most one block of depth deep (384 in gemm; bf16 in pairs: 768). In deeper
/// products the fused block adds bias and residual behind the first block, single segments behind
/// the last.
class SegmentedBlock {
 public:
  virtual ~SegmentedBlock() = default;
  /// InternalError naming the value and the segments if one is missing.
  virtual void forward(const SegmentCall& call, SegmentRange range) const = 0;
  virtual void backward_input(const SegmentCall& call, SegmentRange range) const = 0;
  /// Behind backward_input of the same range.
  virtual void backward_weight(const SegmentCall& call, SegmentRange range) const = 0;
  /// Where rows are split: kNormedAttention or kNormedMlp of this rank's rows, as the forward of
  /// this norm's segment has made it, from its input and statistics.
  virtual void normalize_again(const SegmentCall& call, Segment norm) const = 0;
  /// kKeys from kQkv, for the other ranks of the axis sequence: the rows of `part`, those of one
  /// chunk behind those of the other. Where neighbours exchange heads
  /// (HeadStep::kOrder), this and the three below are of this rank's heads and the tokens of such a
  /// group, which is one member of the ring; kHeadAttention takes the place of kAttention.
  virtual void pack_keys(const SegmentCall& call, const sequence::KeyPart& part) const = 0;
  /// Round `round` of ring attention, in place of segment attention: this rank's queries against
  /// kKeys, which are those of the rank so many positions before, or in round 0 against its own, in
  /// kQkv. Round 0 begins kAttention and kLogSumExp (bf16: kAttentionSum), the others merge into
  /// them; the last one rounds.
  virtual void attend_round(const SegmentCall& call, int64_t round) const = 0;
  /// Its backward: kKeyGradient from zero, for these keys: part by part all rounds but round 0,
  /// which is of all of the rank's own and comes in two halves: first of all kAcross, where
  /// gradients of queries begin, and behind all else kWithin, which adds to kKeyGradient and ends
  /// them.
  virtual void attend_round_input(const SegmentCall& call, const RingRound& where) const = 0;
  /// kKeyGradient += kGatheredKeyGradient, which is what others have summed up of a part: behind
  /// the last round into that of all of the rank's own keys.
  virtual void add_key_gradient(const SegmentCall& call, const RingRound& where) const = 0;
  /// The four above for a batch with a layout: kKeys and kKeyGradient have the rows of one group,
  /// as the holder of the round has them, but kKeyGradient of round 0 all of this rank's. Calls
  /// come in one of the layout's orders: the first begins what all add to, the last ends it.
  /// add_group_gradient: of round `size` the sum that has come home.
  virtual void pack_group(const SegmentCall& call, const GroupRound& where) const = 0;
  virtual void attend_group(const SegmentCall& call, const GroupRound& where) const = 0;
  virtual void attend_group_input(const SegmentCall& call, const GroupRound& where) const = 0;
  virtual void add_group_gradient(const SegmentCall& call, const GroupRound& where) const = 0;
  /// Heads of neighbours that exchange them for a group, to or from kMovedRows: of the first eight
  /// steps, `where.round` is the number of the neighbour. Rows of the rank and the
  /// neighbour's heads, or (kPlaceQkv, kPackAttention, kPlaceAttentionGradient, kPackQkvGradient)
  /// the neighbour's rows among those of all, which have the rank's heads alone. The four above
  /// take and make the latter for such a group.
  virtual void exchange_heads(const SegmentCall& call, RemapStep step,
                              const GroupRound& where) const = 0;
  /// Some rows to or from kMovedRows, which has these rows alone.
  virtual void move_rows(const SegmentCall& call, RemapStep step, const RowRange& rows) const = 0;
  /// A step of attention by heads; kAttendInput takes a workspace of [rows, qkv_width +
  /// attention_width].
  virtual void run_heads(const SegmentCall& call, HeadStep step) const = 0;
};

/// One block of the chain. Thread-safe: all state is in the call. A transformer block of a model
/// with x or y > 1 has segments only; the other functions throw InternalError.
class Block {
 public:
  virtual ~Block() = default;
  virtual void forward(const Call& call, int segment_begin, int segment_end) const = 0;
  virtual void backward_input(const Call& call, int segment_begin, int segment_end) const = 0;
  virtual void backward_weight(const Call& call, int segment_begin, int segment_end) const = 0;
  /// Input and weight gradients together; the bundle lies in the workspace.
  virtual void backward(const Call& call) const = 0;
  /// Head only: loss and both gradients at once, logits in chunks of rows. With gradient == nullptr
  /// the loss alone.
  virtual void forward_backward(const Call& call) const = 0;
  /// Forward of call.batch's tokens behind `position` cached ones.
  virtual void forward_cached(const Call& call) const = 0;
  /// One step of an embedding or a head that ranks share, with the values that end_uses names.
  virtual void run_step(const Call& call, EndStep step, const EndValues& values) const;
  /// Null for a block that is one piece.
  virtual const SegmentedBlock* segments() const { return nullptr; }
};

/// Executes a shape: one Block per BlockShape.
class Model {
 public:
  explicit Model(ModelShape shape, Dtype dtype);
  const ModelShape& shape() const { return shape_; }
  const Block& block(int64_t index) const { return *blocks_[index]; }
  /// Replaces a block, e.g. by an AutogradBlock.
  void set_block(int64_t index, std::unique_ptr<Block> block) { blocks_[index] = std::move(block); }

 private:
  ModelShape shape_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

/// Initial values of the elements of `unit` behind `runs`, packed at `destination`. They depend
/// only on (seed, parameter name, element), so those of a part are a slice of those of the whole.
void initialize(const UnitShape& unit, uint64_t seed, Dtype dtype, const ElementRuns& runs,
                void* destination);

}  // namespace strait::model
