// A training step as data: operations that read, write and free named values. No tensors, no
// sockets. Three readers: runtime executes it, sim replays it on a virtual clock, cost sums it up
// (ARCHITECTURE.md).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "strait/base/dtype.h"

namespace strait::program {

/// constant + scale * (loop variable), or a plain constant when `loop` < 0. Affine, so that a body
/// is checked and priced once.
struct Index {
  int64_t constant = 0;
  int loop = -1;  // id of a Repeat that encloses the use
  int64_t scale = 0;
  bool operator==(const Index&) const = default;
};

/// A contiguous split of `elements` elements: part p is [min(p * grain, elements), min((p + 1) *
/// grain, elements)), so parts may be uneven or empty. grain == elements means one whole part.
struct Partition {
  int64_t elements = 0;
  int64_t grain = 0;
  int64_t begin(int64_t part) const;
  int64_t end(int64_t part) const { return begin(part + 1); }
  int64_t count(int64_t part) const { return end(part) - begin(part); }
  bool operator==(const Partition&) const = default;
};

/// A group of ranks: rank r belongs to the group {base + k * stride, k < size} with position = (r /
/// stride) % size and base = r - position * stride. Axes of the mesh are such groups.
///
/// A group may be the outermost of several hops that shard a vector one after another: the first hop
/// cuts it over neighbouring ranks, the next one cuts each of those shards, and so on. `nest` then holds
/// the sizes of the hops, innermost first, this group's last. Shards of inner hops hold those of outer
/// ones, so what one hop gathers is what the next one needs, in order (specs: nesting of ZeRO-topo; no
/// data has to be reordered after the hops of a ZeRO++ reduction).
struct Group {
  std::string name;  // "world", "node", "across"
  int64_t size = 1;
  int64_t stride = 1;
  int64_t level = 0;               // index of the outermost cluster level that the group spans
  std::vector<int64_t> nest = {};  // empty: no hops inside; else their product is stride * size
  int64_t position(int64_t rank) const { return (rank / stride) % size; }
  int64_t base(int64_t rank) const { return rank - position(rank) * stride; }
  int64_t member(int64_t rank, int64_t at) const { return base(rank) + at * stride; }
  /// Parts of a vector that this group and the hops inside it shard.
  int64_t parts() const { return nest.empty() ? size : stride * size; }
  /// Which of them `rank` holds; without hops inside, its position. O(hops).
  int64_t part(int64_t rank) const;
  /// The members of the group of `rank` hold the parts first_part(rank) + position.
  int64_t first_part(int64_t rank) const { return part(base(rank)); }
  bool operator==(const Group&) const = default;
};

/// A place where operations run one after another: compute, or one lane of a link level. Lanes of
/// one level run concurrently and share its bandwidth.
struct Stream {
  std::string resource;  // "compute" or the name of a level
  int64_t lane = 0;
  bool operator==(const Stream&) const = default;
};
inline constexpr int kCompute = 0;  // stream 0 of every program

/// How long a value lives, seen from one program.
enum class Lifetime : uint8_t {
  kTransient,  // written and freed inside the program
  kResident,   // state of the rank: exists before and after
  kCarryOut,   // resident; a transfer that writes it may still be under way when the program ends
  kCarryIn,    // resident; may still be being written when the program starts
  kCarry,      // both: what one program leaves under way, the next one of its kind takes over
};

/// What a value is, for the memory report.
enum class Category : uint8_t {
  kWeights,
  kSecondary,
  kGradients,
  kOptimizer,
  kActivations,
  kBuffers
};

/// An array of equal values, addressed by one index. The size of an element of the array is that of
/// part(rank) of `partition` in `group`, or all of it when group < 0.
struct ValueArray {
  std::string name;  // "W.block"; elements print as W.block[3], singletons as W.head
  int64_t count = 1;
  Dtype dtype = Dtype::kFloat32;
  Partition partition;
  int group = -1;  // index into Program::groups
  Lifetime lifetime = Lifetime::kTransient;
  Category category = Category::kBuffers;
  bool operator==(const ValueArray&) const = default;
};

/// What an operand means to its operation.
enum class Role : uint8_t {
  kTokens,          // micro-batch: inputs, targets, document starts
  kWeights,         // flat unit, whole
  kInput,           // activation entering
  kOutput,          // activation leaving
  kSaved,           // saved bundle
  kOutputGradient,  // gradient entering a backward
  kInputGradient,   // gradient leaving a backward
  kBundle,          // from backward_input to backward_weight
  kGradient,        // gradient of a unit
  kState,           // optimizer moments and master weights
  kScalars,         // agreed scalars
  kCache,           // key/value cache
  kSource,          // of a transfer or copy
  kDestination,     // of a transfer or copy
};

struct Operand {
  int array = 0;  // index into Program::arrays
  Index index;
  Role role = Role::kSource;
  bool operator==(const Operand&) const = default;
};

enum class OpKind : uint8_t {
  kLoad,             // tokens of a micro-batch
  kForward,          // block; with `save` keeps what the backward needs
  kForwardBackward,  // head: loss, gradient of its input and of its unit
  kForwardLoss,      // head: loss alone (evaluation)
  kForwardCached,    // block with key/value cache (generation)
  kBackward,         // block: input and weight gradients
  kBackwardInput,
  kBackwardWeight,
  kSquaredNorm,  // adds this rank's part of the squared gradient norm to the scalars
  kClipFactor,   // norm -> clip factor and finite flag
  kUpdate,       // optimizer on a shard
  kEncode,       // values into pieces of a codec
  kDecode,       // pieces into values
  kDecodeSum,    // pieces that stand for the same values, one per member of the group: their sum
  kCopy,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kBroadcast,
  kSend,
  kReceive,
  kBarrier,
  kFree,
  kCustom,  // named executor
};

/// "forward", "all_gather", ... as printed.
const char* op_kind_name(OpKind kind);
bool is_communication(OpKind kind);

/// Which parts of its partition an encode or decode works on, and where their pieces lie.
enum class Pieces : uint8_t {
  kOwn,     // the rank's own; in an array that is split, where that part lies
  kAll,     // all, likewise
  kGroup,   // those of its group; in a buffer of the group's pieces, by position
  kMember,  // the rank's own, likewise
};

/// One operation. It waits for the writers of what it reads, for the readers and writers of what it
/// overwrites, for the operation before it on its stream and, for every value in `waits`, for all
/// earlier operations that touch it (its free included); nothing else. A value out of range in
/// `waits` is no wait.
struct Op {
  OpKind kind = OpKind::kFree;
  std::vector<Operand> reads;
  std::vector<Operand> writes;
  std::vector<Operand> waits;
  int stream = kCompute;
  int group = -1;  // communication: the group of ranks; update, squared norm: the sharding group
  Partition partition;  // how the whole vector is split over the group
  Index peer;           // send, receive: position of the peer; broadcast: position of the root
  std::string codec = "none";    // of the pieces that are moved, encoded or decoded
  Pieces pieces = Pieces::kOwn;  // encode, decode
  int64_t piece_bytes = 0;       // of one piece, when there is a codec
  int64_t metadata_bytes = 0;    // of these: scales and the like
  bool accumulate = false;       // add to what is written instead of overwriting it
  bool save = false;             // forward: keep the saved bundle
  Index block;                   // compute: index of the block in the model's chain
  int segment_begin = 0;         // compute: segments of the block, merged into this op
  int segment_end = 0;
  double flops = 0;
  double memory_bytes = 0;      // compute bound by memory (update, norm): bytes read and written
  int64_t workspace_bytes = 0;  // scratch that lives during the op
  Index micro_batch;            // load, forward, backward: which micro-batch of the step
  int64_t unit = -1;   // update, squared norm, gathers, reductions: unit, or -1 = by `block`
  std::string custom;  // kCustom: name of the executor
  bool operator==(const Op&) const = default;
};

struct Repeat;
using Node = std::variant<Op, Repeat>;

/// `body`, count times, with loop variable first, first + step, ... Values cross iterations by
/// index; what one iteration leaves to the next is listed in `carried` (array indices) for the
/// reader.
struct Repeat {
  std::string variable;  // "a" micro-batches, "i" blocks
  int loop = 0;          // id, unique in the program
  int64_t first = 0;
  int64_t step = 1;
  int64_t count = 0;
  std::vector<Node> body;
  std::vector<int> carried;
  bool operator==(const Repeat&) const = default;
};

/// What one class of equal ranks does in one step of one kind.
struct Program {
  std::string name;              // "zero3"
  std::string step_kind;         // first | steady | skipped | round-end | evaluation | generation
  int64_t ranks = 1;             // size of the world
  std::vector<int64_t> members;  // ranks of this class; empty = every rank
  std::vector<Stream> streams;   // [0] is compute
  std::vector<Group> groups;
  std::vector<ValueArray> arrays;
  std::vector<Node> body;
  int num_loops = 0;
  int64_t tokens = 0;  // tokens per rank and program, for reports
  bool operator==(const Program&) const = default;
};

/// Value of an index under the loop variables (indexed by loop id).
inline int64_t evaluate(const Index& index, const std::vector<int64_t>& loops) {
  return index.loop < 0 ? index.constant : index.constant + index.scale * loops[index.loop];
}

/// First element of `array`'s part on `rank`, 0 when it holds all.
int64_t value_begin(const Program& program, const ValueArray& array, int64_t rank);
/// Elements of one value of `array` on `rank`.
int64_t value_elements(const Program& program, const ValueArray& array, int64_t rank);
int64_t value_bytes(const Program& program, const ValueArray& array, int64_t rank);

/// "compute", "world.0", ... by stream.
std::vector<std::string> stream_names(const Program& program);

/// Operations written in the program (bodies once), and executed (bodies times counts).
int64_t count_ops(const Program& program);
int64_t count_instances(const Program& program);

/// Calls visit(op, loops) for every executed instance in program order. `loops`: memory for them that is used again.
template <class Visit>
void for_each_instance(const Program& program, std::vector<int64_t>& loops, Visit&& visit);
template <class Visit>
void for_each_instance(const Program& program, Visit&& visit);

/// Calls visit(op) once for every operation that is written, bodies of repeats once.
template <class Visit>
void for_each_op(const std::vector<Node>& nodes, Visit&& visit) {
  for (const Node& node : nodes) {
    if (const Op* op = std::get_if<Op>(&node))
      visit(*op);
    else
      for_each_op(std::get<Repeat>(node).body, visit);
  }
}

/// Readable text (PROGRAM by example in docs/programs.md).
std::string print(const Program& program);
/// One op, with its indices evaluated when `loops` is given.
std::string print_op(const Program& program, const Op& op,
                     const std::vector<int64_t>* loops = nullptr);

namespace detail {
template <class Visit>
void visit_nodes(const std::vector<Node>& nodes, std::vector<int64_t>& loops, Visit& visit) {
  for (const Node& node : nodes) {
    if (const Op* op = std::get_if<Op>(&node)) {
      visit(*op, loops);
      continue;
    }
    const Repeat& repeat = std::get<Repeat>(node);
    for (int64_t k = 0; k < repeat.count; ++k) {
      loops[repeat.loop] = repeat.first + k * repeat.step;
      visit_nodes(repeat.body, loops, visit);
    }
  }
}
}  // namespace detail

template <class Visit>
void for_each_instance(const Program& program, std::vector<int64_t>& loops, Visit&& visit) {
  loops.assign(static_cast<size_t>(program.num_loops), 0);
  detail::visit_nodes(program.body, loops, visit);
}

template <class Visit>
void for_each_instance(const Program& program, Visit&& visit) {
  std::vector<int64_t> loops;
  for_each_instance(program, loops, visit);
}

}  // namespace strait::program
