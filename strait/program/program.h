// A training step as data: operations that read, write and free named values. No tensors, no
// sockets. Three readers: runtime executes it, sim replays it on a virtual clock, cost sums it up
// (ARCHITECTURE.md).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/program/kernel.h"
#include "strait/program/member_lists.h"

namespace strait::program {

/// No loop, and the counters that live as long as a run: the optimizer's step, the round of local
/// steps.
inline constexpr int kNoLoop = -1;
inline constexpr int kStepCounter = -2;
inline constexpr int kRoundCounter = -3;
inline constexpr int kNumCounters = 2;

/// (constant + scale * loop + other_scale * other_loop) modulo `modulo`, which is 0 for none. A
/// loop is the variable of an enclosing Repeat or a counter. Affine, so that a body is checked and
/// priced once.
struct Index {
  int64_t constant = 0;
  int loop = kNoLoop;
  int64_t scale = 0;
  int other_loop = kNoLoop;
  int64_t other_scale = 0;
  int64_t modulo = 0;
  bool is_constant() const { return loop == kNoLoop && other_loop == kNoLoop; }
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

/// Which part of a vector the holder at `place` has when hops of these sizes, innermost first, have
/// cut it one after another: the first hop cuts it over neighbouring places, the next one cuts each
/// of those parts, and so on.
int64_t part_of(const std::vector<int64_t>& hops, int64_t place);

/// Groups of equally many ranks. Strided: rank r belongs to the group {base + k * stride, k < size}
/// with position = (r / stride) % size and base = r - position * stride. Axes of the mesh are such
/// groups. Otherwise `lists` names the members, and stride and nest stay as they are. Classes that
/// name one group must mean the same members (verifier: group-members).
///
/// A group may be the outermost of several hops that shard a vector one after another: the first
/// hop cuts it over neighbouring ranks, the next one cuts each of those shards, and so on. `nest`
/// then holds the sizes of the hops, innermost first, this group's last; the innermost hop's
/// members lie stride * size / (product of nest) ranks apart. Shards of inner hops hold those of
/// outer ones, so what one hop gathers is what the next one needs, in order (specs: nesting of
/// ZeRO-topo; no data has to be reordered after the hops of a ZeRO++ reduction).
struct Group {
  std::string name;  // "world", "node", "across"
  int64_t size = 1;
  int64_t stride = 1;
  int64_t level = 0;  // index of the outermost cluster level that the group spans
  std::vector<int64_t> nest =
      {};                  // empty: no hops inside; else their product divides stride * size
  MemberLists lists = {};  // empty: strided
  /// -1 when no list holds `rank`; base, member and members need one that does.
  int64_t position(int64_t rank) const {
    return lists.empty() ? (rank / stride) % size : lists.position(rank);
  }
  bool holds(int64_t rank) const { return position(rank) >= 0; }
  int64_t base(int64_t rank) const { return member(rank, 0); }
  int64_t member(int64_t rank, int64_t at) const {
    return lists.empty() ? rank + (at - position(rank)) * stride : lists.member(rank, at);
  }
  /// All of them, ascending.
  std::vector<int64_t> members(int64_t rank) const;
  /// Parts of a vector that this group and the hops inside it shard.
  int64_t parts() const;
  /// Which of them `rank` holds; without hops inside, its position. O(hops).
  int64_t part(int64_t rank) const;
  /// The members of the group of `rank` hold the parts first_part(rank) + position.
  int64_t first_part(int64_t rank) const { return part(base(rank)); }
  bool operator==(const Group&) const = default;
};

/// Whether two groups have the same members on every one of `ranks` ranks. O(1) for strided groups.
bool same_members(const Group& a, const Group& b, int64_t ranks);

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

/// Where a value lies.
enum class Tier : uint8_t {
  kDevice,  // where the rank computes: plain memory, or that of its device
  kHost,    // plain memory
};

/// What a value that outlives a step is called by checkpoints, whatever its name in a program: a
/// state ("master", "first_moment", "residual/0") of consecutive units. Of residuals every sender
/// has its own; of what differs between replicas of the model, every replica.
struct Address {
  std::string state;  // "" = none: the value ends with the process
  int64_t unit = -1;  // of index 0; -1 = of no unit
  bool by_sender = false;
  bool by_replica = false;
  /// Lengths of stretches of the unit that the value's group cuts one by one: the value holds the
  /// rank's part of each, one after another, as if all parts were as long as the first. Empty: a
  /// range of the unit.
  std::vector<int64_t> stretches = {};
  bool operator==(const Address&) const = default;
};

/// An array of equal values, addressed by one index. The size of an element of the array is that of
/// part(rank) of `partition` in `group`, or all of it when group < 0.
///
/// Joined values lie one behind another: value i is part i of `partition`, and a kernel that names
/// all of them in one slot, in order, has one value of partition.elements. Each is written, moved
/// and awaited by itself. They are transient, and operands that name one have a constant index.
/// Those of a group lie otherwise: shares.h.
struct ValueArray {
  std::string name;  // "W.block"; elements print as W.block[3], singletons as W.head
  int64_t count = 1;
  Dtype dtype = Dtype::kFloat32;
  Partition partition;
  int group = -1;  // index into Program::groups
  Lifetime lifetime = Lifetime::kTransient;
  Category category = Category::kBuffers;
  Tier tier = Tier::kDevice;
  Address address = {};
  bool joined = false;
  bool operator==(const ValueArray&) const = default;
};

/// One value that an operation touches. `slot`: which operand of the kernel's table entry it is;
/// transfers have none.
struct Operand {
  int array = 0;  // index into Program::arrays
  Index index;
  Access access = Access::kRead;
  int slot = 0;
  bool operator==(const Operand&) const = default;
};

/// Transfers, control and kernels; there is no other operation.
enum class OpKind : uint8_t {
  kKernel,
  // Transfers.
  kCopy,  // runs inline
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kShift,  // to the next position, from the one before, or both as far away
  kBroadcast,
  kSend,
  kReceive,
  kBarrier,
  // Control. Repeat is the other one.
  kFree,
};

/// "all_gather", "free", ...
const char* op_kind_name(OpKind kind);
/// Has a group and runs on a stream of a link.
inline bool is_communication(OpKind kind) {
  return kind >= OpKind::kAllGather && kind <= OpKind::kBarrier;
}

using Attribute = std::variant<Index, int64_t, double, IntegerRange, std::string>;

/// One operation. It waits for the writers of what it reads, for the readers and writers of what it
/// overwrites, for the operation before it on its stream and, for every value in `waits`, for all
/// earlier operations that touch it (its free included); nothing else. A value out of range in
/// `waits` is no wait.
struct Op {
  OpKind kind = OpKind::kFree;
  const Kernel* kernel = nullptr;  // of a kKernel; a constant that outlives the program
  std::vector<Operand> reads;      // only read
  std::vector<Operand> writes;     // written, updated, added to; freed
  std::vector<Operand> waits;
  int stream = kCompute;
  int group = -1;       // transfers: among whom; kernels: whose parts `partition` has
  Partition partition;  // how the whole vector is split over the group
  Index peer;           // send, receive: position; broadcast: that of the root; shift: skipped
  std::string codec = "none";         // of the pieces that are moved, encoded or decoded
  int64_t piece_bytes = 0;            // of one piece, when there is a codec
  int64_t metadata_bytes = 0;         // of these: scales and the like
  std::vector<Attribute> attributes;  // kernels: as the table lists them
  bool operator==(const Op&) const = default;
};

/// The value of an attribute; the table says its type.
template <class T>
const T& attribute(const Op& op, int number) {
  return std::get<T>(op.attributes[static_cast<size_t>(number)]);
}
/// "forward", "all_gather": the kernel's name or that of the kind.
const char* op_name(const Op& op);
/// The first operand in a slot, or nullptr.
const Operand* operand_in(const std::vector<Operand>& operands, int slot);
/// The same value with another access, in a slot of a kernel.
inline Operand as(Operand operand, Access access, int slot = 0) {
  operand.access = access;
  operand.slot = slot;
  return operand;
}
/// True when it reads what the operand held before.
inline bool reads_before(const Operand& operand) {
  return operand.access == Access::kUpdate || operand.access == Access::kAdd;
}

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

/// Loop variables by loop id, then the counters: what an index is evaluated under.
using Loops = std::vector<int64_t>;
inline int64_t loop_value(int loop, const Loops& loops) {
  return loops[loop >= 0 ? static_cast<size_t>(loop)
                         : loops.size() - static_cast<size_t>(loop - kRoundCounter) - 1];
}
inline int64_t evaluate(const Index& index, const Loops& loops) {
  int64_t value = index.constant;
  if (index.loop != kNoLoop) value += index.scale * loop_value(index.loop, loops);
  if (index.other_loop != kNoLoop) value += index.other_scale * loop_value(index.other_loop, loops);
  return index.modulo > 0 ? value % index.modulo : value;
}

/// Values of the counters while a program runs.
struct Counters {
  int64_t step = 0, round = 0;
};

/// First element of `array`'s part on `rank`, 0 when it holds all.
int64_t value_begin(const Program& program, const ValueArray& array, int64_t rank);
/// Elements of one value of `array` on `rank`.
int64_t value_elements(const Program& program, const ValueArray& array, int64_t rank);
int64_t value_bytes(const Program& program, const ValueArray& array, int64_t rank);
/// The same of value `index`: joined values have sizes of their own.
int64_t value_elements(const Program& program, const ValueArray& array, int64_t rank,
                       int64_t index);
int64_t value_bytes(const Program& program, const ValueArray& array, int64_t rank, int64_t index);
/// Of the value that an operand names; of an array that is not joined whatever its index.
inline int64_t operand_elements(const Program& program, const Operand& operand, int64_t rank) {
  return value_elements(program, program.arrays[static_cast<size_t>(operand.array)], rank,
                        operand.index.constant);
}
/// Whether an operand names the joined value behind the one that `before` names, in the same slot:
/// to the kernel both are one.
bool continues(const Program& program, const Operand& before, const Operand& operand);

/// "compute", "world.0", ... by stream.
std::vector<std::string> stream_names(const Program& program);

/// Operations written in the program (bodies once), and executed (bodies times counts).
int64_t count_ops(const Program& program);
int64_t count_instances(const Program& program);

/// Calls visit(op, loops) for every executed instance in program order. `loops`: memory for them
/// that is used again.
template <class Visit>
void for_each_instance(const Program& program, Loops& loops, const Counters& counters,
                       Visit&& visit);
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
void visit_nodes(const std::vector<Node>& nodes, Loops& loops, Visit& visit) {
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

/// What indices are evaluated under before the first loop.
inline void begin_loops(const Program& program, const Counters& counters, Loops& loops) {
  loops.assign(static_cast<size_t>(program.num_loops), 0);
  loops.push_back(counters.step);  // loop_value reads them from the end
  loops.push_back(counters.round);
}

template <class Visit>
void for_each_instance(const Program& program, Loops& loops, const Counters& counters,
                       Visit&& visit) {
  begin_loops(program, counters, loops);
  detail::visit_nodes(program.body, loops, visit);
}

template <class Visit>
void for_each_instance(const Program& program, Visit&& visit) {
  Loops loops;
  for_each_instance(program, loops, {}, visit);
}

}  // namespace strait::program
