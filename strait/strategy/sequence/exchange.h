// What engines of shared sequences have in common. Internal to the pass.
#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "strait/draft/draft.h"
#include "strait/draft/segment_ops.h"
#include "strait/draft/step_options.h"
#include "strait/sequence/rank_layout.h"
#include "strait/sequence/routing.h"
#include "strait/shape/shape.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// The ranks that share sequences, and the lane of their transfers.
struct SequenceAxis {
  int64_t size = 1;
  int group = -1, lane = -1;
};

/// An array of `count` values as a rank has them, under `name`; -1 where the family or type has
/// none.
int declare_values(draft::Draft& draft, const BlockExtent& extent, Dtype dtype, BlockValue value,
                   const char* name, int64_t count = 1);

/// An op of a visit that does not attend, which depends on what its rank has of each sequence.
program::Op beside_attention(program::Op op, const SequenceAxis& axis);

/// Whether an op is segment attention, or a range that holds it, in a phase that attends.
bool attends(const program::Op& op);

/// The gradient of queries, keys and values that an op of a backward that attends makes.
const program::Operand& qkv_gradient_of(const program::Op& attention);

/// Keys and values of this rank into `keys`, from what `reader`, an op that attends, reads.
/// Its attributes, of a ring or of a group, are the caller's to add.
program::Op pack_keys(const program::Op& reader, const program::Operand& keys);
/// Those of kernels of rings.
void mark_round(program::Op& op, int64_t number, const sequence::KeyPart& part = {});

program::Op transfer_op(program::OpKind kind, const SequenceAxis& axis,
                        const program::Operand& from, const program::Operand& to);

/// Sends a value to a member of the axis, or receives one from it.
program::Op message_op(bool sends, int group, int lane, int64_t peer,
                       const program::Operand& value);

/// A kernel that moves some of the `rows` of an op that attends, of whose operands it has the
/// tokens alone.
program::Op moving_op(const program::Op& attention, const program::Kernel& kernel, int group,
                      int64_t rows);

/// Gathered keys (Llama 3): an all-gather before every op that attends, a reduce-scatter behind its
/// backward.
class GatheredKeys {
 public:
  GatheredKeys(draft::Draft& draft, const SequenceAxis& axis);
  void apply(draft::Visit& visit) const;

 private:
  program::Op transfer(program::OpKind kind, const program::Operand& from,
                       const program::Operand& to) const;

  SequenceAxis axis_;
  program::Partition parts_;  // of gathered keys over the ranks
  program::Operand keys_;
};

/// Adds the operands of `from` in these slots, to be read.
void take(const program::Op& from, std::initializer_list<int> slots, program::Op& op);

/// Queries, keys and values that an op of a forward attends with, saved or not, to be replaced.
program::Operand qkv_in_place(const program::Op& attention);

/// Exchanged heads (Jacobs et al. 2023, DeepSpeed-Ulysses): all-to-alls before and behind an op
/// that attends for some heads, to all tokens.
class Heads {
 public:
  Heads(draft::Draft& draft, const ModelShape& shape, const draft::StepOptions& options,
        const SequenceAxis& axis);
  void apply(draft::Visit& visit) const;

  /// What stands before an op that attends, up to what has come from the others (kHeadReceive, in
  /// the backward kHeadOutReceive and kHeadDeltaReceive), and behind it, from what goes back
  /// (kHeadOutSend, kHeadSend).
  void fetch(const program::Op& attention, std::vector<program::Op>& ops) const;
  void give_back(const program::Op& attention, std::vector<program::Op>& ops) const;
  /// Without operands but the tokens; only steps that attend compute something.
  program::Op step(const program::Op& attention, HeadStep step) const;
  program::Operand value(BlockValue value) const;
  /// The value as an operand in its own slot.
  program::Operand operand(BlockValue value, program::Access access) const;
  void free(std::initializer_list<BlockValue> values, std::vector<program::Op>& ops) const;

 private:
  void forward(const program::Op& attention, std::vector<program::Op>& ops) const;
  void backward(const program::Op& attention, std::vector<program::Op>& ops) const;
  program::Op exchange(BlockValue from, BlockValue to) const;

  SequenceAxis axis_;
  std::array<int, kNumBlockValues> arrays_;             // -1: none
  std::array<int64_t, kNumBlockValues> elements_ = {};  // of these
  int64_t workspace_bytes_ = 0;
};

/// A value that a round leaves to the next one, and not to others.
struct Carried {
  int array = -1;  // -1: the family or type has none
  BlockValue value = BlockValue::kDelta;
};

/// What engines by rounds have in common: the ops of one block's attention that rounds take the
/// place of, and the values that these carry.
class Rounds {
 public:
  /// `delta_comes`: something before the first round of a backward makes it.
  Rounds(draft::Draft& draft, const BlockExtent& extent, Dtype dtype, bool delta_comes = false);

  /// Rewrites what attends in a visit; `backward` is given the gradient of the rank's own keys,
  /// which is freed behind the visit.
  using Forward = std::function<void(const program::Op& attention, std::vector<program::Op>& ops)>;
  using Backward =
      std::function<void(const program::Op& attention, const program::Operand& gradient,
                         std::vector<program::Op>& ops)>;
  void rewrite(draft::Visit& visit, const SequenceAxis& axis, const Forward& forward,
               const Backward& backward) const;

  /// Of a forward op that attends, or of a backward one.
  std::vector<Carried> carried(const program::Op& attention) const;
  /// Makes `op`, which stands in place of `attention`, one of rounds; keys are the caller's to
  /// give.
  void attend(program::Op& op, const program::Op& attention, bool first) const;
  /// Behind the last round.
  void free_carried(const program::Op& attention, std::vector<program::Op>& ops) const;
  program::Operand delta(program::Access access) const;

 private:
  Carried log_sum_exp_, attention_sum_, delta_, query_sum_;
  bool delta_comes_;
};

/// `to` += the sum `from`, which has come from others; its kernel and its attributes are the
/// caller's to set.
program::Op add_sum(const program::Op& attention, const SequenceAxis& axis,
                    const program::Operand& from, const program::Operand& to);

/// A ring (Liu et al. 2023): rounds of attention in place of every op that attends, each beside the
/// shift that brings the keys of the next one. In the backward the sums of their gradients follow
/// the keys, one round behind, and come home at the end. Keys of a long chunk go around part by
/// part there (sequence::ring_parts), so that sums under way take little memory. Something is
/// computed beside either end: one half of the round with a rank's own keys while the first others
/// come, the other half while the last sums come home; between them the next part.
class Ring {
 public:
  /// `extent`: of what a member attends with; `delta_comes`: Rounds.
  Ring(draft::Draft& draft, const BlockExtent& extent, const draft::StepOptions& options,
       const SequenceAxis& axis, bool delta_comes = false);
  void apply(draft::Visit& visit) const;

  /// In place of an op that attends; in the backward with the gradient of the member's own keys.
  void forward(const program::Op& attention, std::vector<program::Op>& ops) const;
  void backward(const program::Op& attention, const program::Operand& gradient,
                std::vector<program::Op>& ops) const;
  const Rounds& rounds() const { return rounds_; }

 private:
  using Ops = std::vector<program::Op>;
  program::Op round(const program::Op& attention, bool first, double flops) const;
  /// Of a backward: with the rank's own keys, some of their pairs.
  program::Op own_round(const program::Op& attention, sequence::OwnPairs pairs,
                        const program::Operand& gradient) const;
  /// One of a part's other rounds, beside which the keys of the next one come.
  void part_round(const program::Op& attention, int64_t part, int64_t number, Ops& ops) const;
  void fetch_part(const program::Op& attention, int64_t part, Ops& ops) const;
  /// `to` += the sum that has come of a part behind round `number` - 1.
  void add(const program::Op& attention, int64_t part, int64_t number, const program::Operand& to,
           Ops& ops) const;
  program::Op shift(const program::Operand& from, const program::Operand& to) const;
  /// What a backward passes around of a part: its value for a round.
  program::Operand value(int array, int64_t part, int64_t number) const;

  SequenceAxis axis_;
  int64_t chunk_, parts_;
  int keys_;                          // by round, of a forward
  int part_keys_, gradients_, sums_;  // of a backward: value
  Rounds rounds_;
};

/// Neighbours that exchange heads, and the ranks of a ring, one of each such group of neighbours.
struct HeadsRingAxes {
  SequenceAxis heads, ring;
};

/// Heads inside rings (Fang & Zhao 2024, USP; Gu et al. 2024, LoongTrain): neighbours exchange
/// heads, and for its heads each is on a ring with one rank of every other such group, whose member
/// has the tokens of the whole group.
class HeadsRing {
 public:
  HeadsRing(draft::Draft& draft, const ModelShape& shape, const draft::StepOptions& options,
            const HeadsRingAxes& axes);
  void apply(draft::Visit& visit) const;

 private:
  void forward(const program::Op& attention, std::vector<program::Op>& ops) const;
  void backward(const program::Op& attention, std::vector<program::Op>& ops) const;

  SequenceAxis ranks_;
  Heads heads_;
  Ring ring_;
  program::Operand key_gradient_;  // of the tokens and the heads with which a member attends
};

/// A rank among those that a plan spreads documents over, and the lanes of its messages.
struct DocumentAxis {
  SequenceAxis axis;
  int64_t member = 0;
  std::array<int, 3> lanes = {};
  int rows_lane = -1;  // of rows that are remapped
  /// Of what crosses nodes over proxies or in several orders, as `lanes` by hop; to proxies, and
  /// from them.
  std::array<int, 3> crossing_lanes = {};
  int dispatch_lane = -1, combine_lane = -1;
  /// Of heads that neighbours exchange: to higher ranks, and to lower ones.
  std::array<int, 2> head_lanes = {};
};

/// What passes between neighbours of rings: a value, or the chunks of one that is joined.
using Chunks = std::vector<program::Operand>;

/// The hops of the rings of a rank: its own, and those of others for which it is a proxy
/// (Zeppelin's routing layer). Ranks take part in the order of rings, rounds, hops and chunks, each
/// lane for itself, so that they do not wait in a circle.
class Hops {
 public:
  enum class Kind : uint8_t { kKeys, kGradients };
  Hops(draft::Draft& draft, const sequence::RankLayout& layout, const sequence::RankGrid& grid,
       const DocumentAxis& axis, const BlockExtent& extent, Dtype dtype);

  /// A value with the rows of a member: in chunks where the group's transfers are routed.
  Chunks declare(draft::Draft& draft, const std::string& name, size_t group, int64_t member,
                 Dtype dtype) const;
  /// Of round `number`: `from` to the next member, `to` from the one before, and as a proxy.
  void pass(size_t group, Kind kind, int64_t number, const Chunks& from, const Chunks& to,
            std::vector<program::Op>& ops) const;

 private:
  struct Message {
    int64_t from = 0, to = 0;  // ranks
    int lane = -1;
    program::Operand sent, received;  // on either side
    bool relayed = false;             // the sender is a proxy, and has no more use for it
  };
  struct Hop {
    int64_t position = 0, from = 0, to = 0;  // of the sender in the ring; ranks
    bool crosses = false;                    // nodes, and has a lane for that
    int lane = -1;  // of its messages; where it is routed of those between the nodes
  };
  std::vector<Hop> hops_of(size_t group) const;
  sequence::RoutedRows rows_of(size_t group, int64_t member) const;
  void add(const Message& message, std::vector<program::Op>& ops) const;
  bool routed(size_t group) const { return groups_[group].proxies > 1; }
  /// Columns of keys and values that go around.
  int64_t width(size_t group) const {
    return 2 * extent_.head_width * groups_[group].key_heads(extent_.kv_heads).size();
  }
  using Relay = std::tuple<size_t, Kind, int64_t, int64_t, int64_t>;  // .., number, position, chunk

  DocumentAxis axis_;
  std::vector<sequence::RankGroup> groups_;
  sequence::RankGrid grid_;
  BlockExtent extent_;
  std::map<Relay, int> relays_;  // arrays of what this rank passes on as a proxy
};

/// Rows that a plan moves between attention and linear modules (Zeppelin's remapping layer): those
/// whose attention is another rank's leave before an op that attends and come back behind it, or
/// the rows of the residual stream before and behind the segments up to attention_add. Ranks take
/// part in their order of RankLayout::moved, so that they do not wait in a circle.
class RowMoves {
 public:
  RowMoves(draft::Draft& draft, const BlockExtent& extent, Dtype dtype,
           const sequence::RankLayout& layout, const DocumentAxis& axis);

  /// Rows under way, of one of the values that move.
  struct Arrivals {
    RemapStep place = RemapStep::kPlaceQkv;
    std::vector<program::Operand> values = {};  // where they belong
    std::vector<size_t> pending = {};           // moves that have not been placed
  };
  /// Packs and sends the rows of `values` that others attend to (`to_attention`), or that linear
  /// modules have there, and receives those that belong here.
  Arrivals start(const program::Op& attention, RemapStep pack,
                 const std::vector<program::Operand>& values, bool to_attention,
                 std::vector<program::Op>& ops) const;
  /// What arrives of rows before `end` is there behind this; -1: of all.
  void place(const program::Op& attention, Arrivals& arrivals, int64_t end,
             std::vector<program::Op>& ops) const;

 private:
  program::Op step(const program::Op& attention, RemapStep step, size_t move) const;
  program::Op message(bool sends, size_t move, const program::Operand& rows) const;
  program::Operand moved(RemapStep step, size_t move) const;

  DocumentAxis axis_;
  std::vector<sequence::MovedRows> moves_;
  int64_t attention_rows_;
  std::vector<int> qkv_, attention_, stream_;  // arrays by move
  bool pads_;  // rows of no document stand where attention has given ones
};

/// Where a plan moves rows of the residual stream (Remapping::kResidual): the norm of attention,
/// its products and the sum that adds it have the rows of attention, all else the even ones. Of a
/// backward's two moves each stands beside the products for weights of what lies before it.
class StreamMoves {
 public:
  explicit StreamMoves(const RowMoves& rows) : rows_(rows) {}
  void apply(draft::Visit& visit) const;

 private:
  using Ops = std::vector<program::Op>;
  void forward(const Ops& before, bool moves_input, Ops& ops) const;
  void backward(const Ops& before, Ops& ops) const;

  const RowMoves& rows_;
};

/// Heads that neighbours exchange for some groups of a plan (sequence/exchanged_heads.h): what
/// stands around the rounds of such a group, and what these work on in place of the rank's own
/// rows: for its heads the rows of all neighbours. Queries, keys, values, results and their
/// log-sum-exps stay from a forward to its backward. Ranks take part in the order of groups and of
/// sequence::turns_of, so that they do not wait in a circle.
class GroupHeads {
 public:
  GroupHeads(draft::Draft& draft, const sequence::RankLayout& layout, const ModelShape& shape,
             const draft::StepOptions& options, const DocumentAxis& axis);
  bool exchanges(size_t group) const { return groups_[group].head_ranks() > 1; }

  /// Packs and sends for every neighbour, of the first eight steps; `own`: of the rank's own rows,
  /// where the step takes these.
  void send(const program::Op& attention, RemapStep pack, size_t group,
            const std::vector<program::Operand>& own, std::vector<program::Op>& ops) const;
  /// What has come from every neighbour, where it belongs; to `own` likewise.
  void place(const program::Op& attention, RemapStep place, size_t group,
             const std::vector<program::Operand>& own, std::vector<program::Op>& ops) const;
  /// Queries, keys and values in place of what `op` reads beside tokens.
  void take_qkv(program::Op& op, const program::Op& attention, size_t group) const;
  /// Gives a round its operands, but for keys and, in a backward, their gradient.
  void attend(program::Op& op, const program::Op& attention, size_t group, bool first) const;
  program::Operand key_gradient(const program::Op& attention, size_t group) const {
    return shared(attention, group, BlockValue::kKeyGradient);
  }
  /// Behind the last round and what it leaves: nothing stays but what a backward to come needs.
  void free(const program::Op& attention, size_t group, std::vector<program::Op>& ops) const;

 private:
  /// Arrays for one neighbour: the rank's own rows and the neighbour's heads, the reverse.
  struct Messages {
    int own = -1, theirs = -1;
  };
  struct Values {
    std::array<int, kNumBlockValues> shared;         // arrays by block; -1: none
    std::vector<Messages> qkv = {}, attention = {};  // by neighbour
  };
  Values declare_group(draft::Draft& draft, size_t number) const;
  program::Operand shared(const program::Op& attention, size_t group, BlockValue value) const;
  std::vector<program::Operand> operands_of(const program::Op& attention, RemapStep step,
                                            size_t group,
                                            const std::vector<program::Operand>& own) const;
  program::Op move(const program::Op& attention, RemapStep step, size_t group,
                   int64_t neighbour) const;
  program::Op message(bool sends, size_t group, int64_t neighbour,
                      const program::Operand& heads) const;
  /// What is moved in a step, and whether there is anything of it.
  program::Operand moved(RemapStep step, size_t group, int64_t neighbour) const;
  bool has_rows(RemapStep step, size_t group, int64_t neighbour) const;

  DocumentAxis axis_;
  std::vector<sequence::RankGroup> groups_;
  int64_t attended_rows_, blocks_;
  BlockExtent extent_;
  Dtype dtype_;
  std::vector<Values> values_;  // of groups without exchanged heads empty
};

/// Documents as StepOptions::plan spreads them over ranks (Zeppelin): rings of whichever ranks
/// share documents, and a rank's own, in the order of its layout. Keys of all rings start before
/// any computes, of two rounds at once where the plan fills; else as a Ring, by messages between
/// neighbours. Where these exchange heads, that comes first, and results go back behind all rounds.
/// A rank's program follows from its own part of the plan.
class Documents {
 public:
  Documents(draft::Draft& draft, const ModelShape& shape, const draft::StepOptions& options,
            const DocumentAxis& axis);
  void apply(draft::Visit& visit) const;

 private:
  /// By round: keys from 0 on, parts of their gradients from 1, sums from 2.
  struct GroupValues {
    std::vector<Chunks> keys, parts, sums;
  };
  GroupValues declare_group(draft::Draft& draft, Dtype dtype, size_t number) const;
  const Chunks& keys(size_t group, int64_t round) const {
    return values_[group].keys[static_cast<size_t>(round)];
  }
  const Chunks& part(size_t group, int64_t round) const {
    return values_[group].parts[static_cast<size_t>(round - 1)];
  }
  const Chunks& sum(size_t group, int64_t round) const {
    return values_[group].sums[static_cast<size_t>(round - 2)];
  }
  RowMoves::Arrivals start_rows(const program::Op& attention, RemapStep pack,
                                const std::vector<program::Operand>& values, bool to_attention,
                                std::vector<program::Op>& ops) const;
  std::vector<size_t> head_groups() const;
  void start(const program::Op& attention, std::vector<program::Op>& ops) const;
  void forward(const program::Op& attention, std::vector<program::Op>& ops) const;
  void backward(const program::Op& attention, const program::Operand& gradient,
                std::vector<program::Op>& ops) const;
  void pack(const program::Op& attention, size_t group, std::vector<program::Op>& ops) const;
  void prepare(const sequence::EngineStep& step, std::vector<program::Op>& ops) const;
  void free_keys(size_t group, int64_t number, std::vector<program::Op>& ops) const;
  program::Op round(const program::Op& attention, const sequence::EngineStep& step) const;
  program::Op add(const program::Op& attention, const Chunks& to, size_t group,
                  int64_t number) const;
  void pass_keys(size_t group, int64_t number, std::vector<program::Op>& ops) const;
  void mark(program::Op& op, size_t group, int64_t number) const;
  int64_t end_row(size_t group) const {
    return layout_.groups[group].first_row + layout_.groups[group].rows;
  }

  DocumentAxis axis_;
  sequence::RankLayout layout_;
  RowMoves moved_;
  bool moves_qkv_;
  Hops hops_;
  GroupHeads heads_;
  int64_t ahead_;  // rounds for which keys are on their way
  BlockExtent extent_;
  std::vector<GroupValues> values_;
  Rounds rounds_;
};

}  // namespace strait::strategy
