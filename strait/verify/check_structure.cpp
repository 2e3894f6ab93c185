// What can be said of a program without executing it: every number refers to something, indices
// stay in range over their loops, operations have the operands that their kind needs.
#include <fmt/format.h>

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/codec/borders.h"
#include "strait/codec/runs.h"
#include "strait/program/lifetime.h"
#include "strait/program/transfer.h"
#include "strait/verify/findings.h"

namespace strait::program {

namespace {

constexpr size_t kMostRanksPerOp =
    64;  // ranks on which the sizes of a transfer's operands are checked

class StructureCheck {
 public:
  StructureCheck(int64_t rank_class, Findings& findings)
      : rank_class_(rank_class), findings_(findings), program_(findings.classes()[rank_class]) {
    const std::vector<int64_t> all = class_ranks(program_);
    const size_t stride = (all.size() + kMostRanksPerOp - 1) / kMostRanksPerOp;
    for (size_t i = 0; i < all.size(); i += stride) sample_.push_back(all[i]);
    if (!all.empty() && sample_.back() != all.back()) sample_.push_back(all.back());
  }

  void run() {
    header();
    if (findings_.empty()) nodes(program_.body);
  }

 private:
  void problem(const char* kind, const Op* op, const std::string& sentence) {
    findings_.add(kind, {rank_class_, op}, sentence);
  }
  void op_problem(const char* kind, const Op& op, const std::string& what) {
    problem(kind, &op, findings_.quote(rank_class_, op) + " " + what);
  }

  void header() {
    if (program_.streams.empty()) problem("malformed", nullptr, "there is no compute stream");
    for (const ValueArray& array : program_.arrays) {
      const bool known = array.group < static_cast<int>(program_.groups.size());
      if (!known || array.count < 0 || array.partition.elements < 0 || array.partition.grain < 0)
        problem("malformed", nullptr,
                fmt::format("value {} has an unknown group or a negative size", array.name));
      else if (array.joined && !joins(array))
        problem(
            "malformed", nullptr,
            fmt::format("joined values {} are not transient, or not the {} parts of {} "
                        "elements by {}",
                        array.name, array.count, array.partition.elements, array.partition.grain));
    }
  }

  /// Whether the values of an array are, without a rest, what its partition cuts.
  bool joins(const ValueArray& array) const {
    if (array.count < 1 || array.lifetime != Lifetime::kTransient) return false;
    Partition cut = array.partition;
    int64_t count = array.count;
    if (array.group >= 0) {
      const int64_t ranks = program_.groups[array.group].size;
      if (count % ranks != 0 || cut.elements % ranks != 0) return false;
      cut.elements /= ranks;
      count /= ranks;
    }
    return cut.count(count - 1) > 0 && cut.end(count - 1) == cut.elements;
  }

  void nodes(const std::vector<Node>& list) {
    for (const Node& node : list) {
      if (findings_.full()) return;
      if (const Op* op = std::get_if<Op>(&node)) {
        operation(*op);
        continue;
      }
      const Repeat& repeat = std::get<Repeat>(node);
      if (repeat.loop < 0 || repeat.loop >= program_.num_loops ||
          find_loop(repeat.loop) != nullptr || repeat.count < 0) {
        problem("malformed", nullptr,
                fmt::format(
                    "repeat {} has loop {} of {}, already in use or unknown, or a negative count",
                    repeat.variable, repeat.loop, program_.num_loops));
        continue;
      }
      if (repeat.count == 0) continue;
      enclosing_.push_back(&repeat);
      nodes(repeat.body);
      enclosing_.pop_back();
    }
  }

  const Repeat* find_loop(int loop) const {
    for (const Repeat* repeat : enclosing_) {
      if (repeat->loop == loop) return repeat;
    }
    return nullptr;
  }

  /// Smallest and largest value of an index; nothing when a loop of it does not enclose it. A
  /// counter grows without bounds, so its index needs a modulo, and must not start or count below
  /// zero.
  bool range(const Index& index, int64_t& low, int64_t& high) const {
    low = high = index.constant;
    const bool counted = index.loop < kNoLoop || index.other_loop < kNoLoop;
    if (counted && (index.modulo == 0 || falls(index.loop, index.scale) ||
                    falls(index.other_loop, index.other_scale)))
      return false;
    if (!add_range(index.loop, index.scale, low, high) ||
        !add_range(index.other_loop, index.other_scale, low, high))
      return false;
    if (counted && low < 0) return false;
    if (index.modulo > 0 && (counted || low < 0 || high >= index.modulo)) {
      low = std::min<int64_t>(low, 0);  // a negative number stays negative modulo anything
      high = index.modulo - 1;
    }
    return true;
  }

  static bool falls(int loop, int64_t scale) { return loop < kNoLoop && scale < 0; }

  bool add_range(int loop, int64_t scale, int64_t& low, int64_t& high) const {
    if (loop < 0) return true;
    const Repeat* repeat = find_loop(loop);
    if (repeat == nullptr) return false;
    const int64_t first = scale * repeat->first;
    const int64_t last = scale * (repeat->first + (repeat->count - 1) * repeat->step);
    low += std::min(first, last);
    high += std::max(first, last);
    return true;
  }

  void operation(const Op& op) {
    const bool stream_known =
        op.stream >= 0 && op.stream < static_cast<int>(program_.streams.size());
    if (!stream_known) {
      return op_problem("malformed", op,
                        fmt::format("is on stream {} of {}", op.stream, program_.streams.size()));
    }
    if (!operands(op)) return;
    if (is_communication(op.kind)) {
      communication(op);
    } else if (op.stream != kCompute) {
      op_problem("malformed", op, "is no communication but stands on a communication stream");
    } else if (op.kind == OpKind::kFree) {
      frees(op);
    } else if (op.kind == OpKind::kCopy) {
      if (operand_counts(op) && transfer_accesses(op)) alike(op);
    } else if (op.kind == OpKind::kKernel) {
      kernel(op);
    }
  }

  /// A copy moves a value into one like it.
  void alike(const Op& op) {
    const ValueArray& from = program_.arrays[op.reads[0].array];
    const ValueArray& to = program_.arrays[op.writes[0].array];
    if (from.dtype != to.dtype)
      return op_problem(
          "malformed", op,
          fmt::format("copies {} into {}", dtype_name(from.dtype), dtype_name(to.dtype)));
    for (const int64_t rank : sample_)
      if (!one_size(op, rank, op.writes, operand_elements(program_, op.reads[0], rank))) return;
  }

  /// The operands and attributes are those of the kernel's table entry, and it costs no less than
  /// touching them.
  void kernel(const Op& op) {
    if (op.kernel == nullptr) return op_problem("malformed", op, "calls no kernel");
    if (!accesses(op, op.reads) || !accesses(op, op.writes) || !present(op) || !attributes(op))
      return;
    const double bytes = cost_of(program_, op, sample_.front()).bytes;
    const double least = touched_bytes(program_, op, sample_.front());
    if (bytes >= least) return;
    op_problem(
        "malformed", op,
        fmt::format("is said to touch {:.0f} bytes, but its operands have {:.0f}", bytes, least));
  }

  bool accesses(const Op& op, const std::vector<Operand>& operands) {
    const std::vector<KernelOperand>& known = op.kernel->operands;
    for (const Operand& operand : operands) {
      const std::string& name = program_.arrays[operand.array].name;
      if (operand.slot < 0 || operand.slot >= static_cast<int>(known.size())) {
        op_problem("malformed", op,
                   fmt::format("gives {} as operand {} of {}, which has {}", name, operand.slot,
                               op.kernel->name, known.size()));
        return false;
      }
      const KernelOperand& entry = known[static_cast<size_t>(operand.slot)];
      const bool in_reads = &operands == &op.reads;
      if ((entry.access & only(operand.access)) != 0 &&
          in_reads == (operand.access == Access::kRead))
        continue;
      op_problem("malformed", op,
                 fmt::format("declares {} of {} as {}, which its table entry does not allow",
                             access_name(operand.access), name, entry.name));
      return false;
    }
    return true;
  }

  bool present(const Op& op) {
    for (size_t slot = 0; slot < op.kernel->operands.size(); ++slot) {
      const KernelOperand& entry = op.kernel->operands[slot];
      int64_t given = 0;
      for (const auto* list : {&op.reads, &op.writes})
        for (size_t at = 0; at < list->size(); ++at)
          given += (*list)[at].slot == static_cast<int>(slot) &&
                   (at == 0 || !continues(program_, (*list)[at - 1], (*list)[at]));
      const bool fits = given == 1   ? entry.count != Count::kNone
                        : given == 0 ? entry.count != Count::kOne
                                     : entry.count == Count::kAny;
      if (fits && (given == 0 || !entry.whole || all_joined(op, static_cast<int>(slot)))) continue;
      op_problem("malformed", op,
                 fmt::format("has {} values for {} of {}", given, entry.name, op.kernel->name));
      return false;
    }
    return true;
  }

  /// Of joined values a kernel touches all, or this rank's of a group's, unless its table entry
  /// says that it takes a part.
  bool all_joined(const Op& op, int slot) {
    for (const auto* list : {&op.reads, &op.writes})
      for (const Operand& operand : *list) {
        const ValueArray& array = program_.arrays[operand.array];
        if (operand.slot != slot || !array.joined) continue;
        const int64_t named = std::count_if(list->begin(), list->end(), [&](const Operand& other) {
          return other.slot == slot && other.array == operand.array;
        });
        if (named == array.count || is_own(*list, operand, named)) continue;
        op_problem(
            "malformed", op,
            fmt::format("has {} of the {} joined values {}", named, array.count, array.name));
        return false;
      }
    return true;
  }

  /// Whether the `named` values of the operand's slot are those of the rank's own part.
  bool is_own(const std::vector<Operand>& list, const Operand& operand, int64_t named) const {
    const ValueArray& array = program_.arrays[operand.array];
    if (array.group < 0 || named * program_.groups[array.group].size != array.count) return false;
    return std::ranges::all_of(list, [&](const Operand& other) {
      return other.slot != operand.slot || other.array != operand.array ||
             other.index.constant < named;
    });
  }

  bool attributes(const Op& op) {
    const std::vector<AttributeInfo>& known = op.kernel->attributes;
    const auto fits = [](const Attribute& attribute, const AttributeInfo& info) {
      return attribute.index() == static_cast<size_t>(info.type);
    };
    if (std::equal(op.attributes.begin(), op.attributes.end(), known.begin(), known.end(), fits))
      return true;
    op_problem(
        "malformed", op,
        fmt::format("has other attributes than the {} of {}", known.size(), op.kernel->name));
    return false;
  }

  bool operands(const Op& op) {
    bool good = true;
    for (const auto* list : {&op.reads, &op.writes, &op.waits}) {
      for (const Operand& operand : *list)
        good = one_operand(op, operand, list != &op.waits) && good;
    }
    good = loops_enclose(op, op.peer) && good;
    for (const Attribute& attribute : op.attributes)
      if (const Index* index = std::get_if<Index>(&attribute))
        good = loops_enclose(op, *index) && good;
    return good;
  }

  bool loops_enclose(const Op& op, const Index& index) {
    for (const int loop : {index.loop, index.other_loop}) {
      if (loop < 0 || find_loop(loop) != nullptr) continue;
      op_problem("malformed", op, "uses a loop variable outside its loop");
      return false;
    }
    return true;
  }

  bool one_operand(const Op& op, const Operand& operand, bool must_exist) {
    if (operand.array < 0 || operand.array >= static_cast<int>(program_.arrays.size())) {
      op_problem("malformed", op,
                 fmt::format("names value array {} of {}", operand.array, program_.arrays.size()));
      return false;
    }
    int64_t low = 0, high = 0;
    if (!range(operand.index, low, high)) {
      op_problem(
          "malformed", op,
          "uses a loop variable outside its loop, or a counter without a modulo or below zero");
      return false;
    }
    const ValueArray& array = program_.arrays[operand.array];
    if (array.joined && low != high) {
      op_problem("malformed", op,
                 fmt::format("names one of the joined values {} by a loop variable", array.name));
      return false;
    }
    if (!must_exist || (low >= 0 && high < array.count)) return true;
    op_problem("out-of-range", op,
               fmt::format("uses {}[{}], but {} has {} elements", array.name, low < 0 ? low : high,
                           array.name, array.count));
    return false;
  }

  void frees(const Op& op) {
    if (op.reads.empty() && op.writes.empty()) op_problem("malformed", op, "names no value");
    for (const auto* list : {&op.reads, &op.writes}) {
      for (const Operand& operand : *list) {
        if (program_.arrays[operand.array].lifetime == Lifetime::kTransient) continue;
        op_problem("malformed", op, "frees a value that outlives the program");
      }
    }
  }

  void communication(const Op& op) {
    if (op.stream == kCompute)
      return op_problem("malformed", op, "is communication but stands on compute");
    if (op.group < 0 || op.group >= static_cast<int>(program_.groups.size())) {
      return op_problem("malformed", op,
                        fmt::format("is among group {} of {}", op.group, program_.groups.size()));
    }
    if (!operand_counts(op) || !transfer_accesses(op)) return;
    if (op.kind == OpKind::kSend || op.kind == OpKind::kReceive || op.kind == OpKind::kBroadcast)
      peer(op);
    if (op.kind == OpKind::kShift) skipped(op);
    if (op.kind != OpKind::kBarrier) sizes(op);
    codec(op);
  }

  /// A transfer only reads its source, and overwrites what it makes or, where it sums, adds to it.
  bool transfer_accesses(const Op& op) {
    const bool sums = op.kind == OpKind::kReduceScatter || op.kind == OpKind::kAllReduce;
    const auto refuse = [&](const Operand& operand, const char* which) {
      op_problem("malformed", op,
                 fmt::format("is said to {} what it {}", access_name(operand.access), which));
      return false;
    };
    for (const Operand& operand : op.reads)
      if (operand.access != Access::kRead) return refuse(operand, "reads");
    for (const Operand& operand : op.writes)
      if (operand.access != Access::kWrite && !(sums && operand.access == Access::kAdd))
        return refuse(operand, "makes");
    return true;
  }

  bool operand_counts(const Op& op) {
    size_t reads = 1, writes = 1;
    if (op.kind == OpKind::kBarrier || op.kind == OpKind::kSend) writes = 0;
    if (op.kind == OpKind::kBarrier || op.kind == OpKind::kReceive) reads = 0;
    const bool broadcast = op.kind == OpKind::kBroadcast;
    const bool reads_fit = op.reads.size() == reads || (broadcast && op.reads.empty());
    const bool writes_fit =
        op.writes.size() == writes || (broadcast && op.writes.empty() && !op.reads.empty());
    if (reads_fit && writes_fit) return true;
    op_problem(
        "malformed", op,
        fmt::format("reads {} values and writes {}, but {} reads {} and writes {}", op.reads.size(),
                    op.writes.size(), op_kind_name(op.kind), reads, writes));
    return false;
  }

  void peer(const Op& op) {
    const Group& group = program_.groups[op.group];
    int64_t low = 0, high = 0;
    if (!range(op.peer, low, high))
      return op_problem("malformed", op,
                        "has a peer that uses a counter without a modulo or below zero");
    if (low < 0 || high >= group.size) {
      return op_problem("out-of-range", op,
                        fmt::format("has peer {}, but group {} has positions 0..{}",
                                    low < 0 ? low : high, group.name, group.size - 1));
    }
    if (op.kind == OpKind::kBroadcast || low != high) return;
    for (const int64_t rank : sample_) {
      if (group.position(rank) != low) continue;
      return op_problem("malformed", op, fmt::format("has rank {} itself as its peer", rank));
    }
  }

  void codec(const Op& op) {
    if (op.codec == "none") return;
    try {
      if (codec::is_runs(op.codec))
        codec::parse_runs(op.codec);
      else
        codec::parse_bordered(op.codec);
    } catch (const Error& error) {
      op_problem("malformed", op, fmt::format("has an unknown codec: {}", error.what()));
    }
  }

  /// A shift skips as many positions everywhere, and comes to another one than its own.
  void skipped(const Op& op) {
    const Group& group = program_.groups[op.group];
    const int64_t most = std::max<int64_t>(0, group.size - 2);
    if (op.peer.is_constant() && op.peer.constant >= 0 && op.peer.constant <= most) return;
    op_problem("out-of-range", op,
               fmt::format("skips other than 0 to {} positions of group {}", most, group.name));
  }

  void sizes(const Op& op) {
    const Group& group = program_.groups[op.group];
    const bool split = op.kind == OpKind::kAllGather || op.kind == OpKind::kReduceScatter ||
                       op.kind == OpKind::kAllToAll;
    const int64_t parts = op.kind == OpKind::kAllToAll ? group.size : group.parts();
    if (split && op.partition.begin(parts) != op.partition.elements) {
      return op_problem(
          "malformed", op,
          fmt::format("splits {} elements by {} over {} ranks, which leaves some to nobody",
                      op.partition.elements, op.partition.grain, parts));
    }
    if (!op.reads.empty() && !op.writes.empty() && op.codec == "none") {
      const Dtype from = program_.arrays[op.reads[0].array].dtype,
                  to = program_.arrays[op.writes[0].array].dtype;
      if (from != to) {
        return op_problem(
            "malformed", op,
            fmt::format("moves {} into {} without a codec", dtype_name(from), dtype_name(to)));
      }
    }
    for (const int64_t rank : sample_) {
      if (!sizes_on(op, rank)) return;
    }
  }

  /// Elements that the operands of a transfer must have on `rank`.
  bool sizes_on(const Op& op, int64_t rank) {
    const Group& group = program_.groups[op.group];
    const Split split = transfer_split(program_, op, rank);
    const int64_t all = split.elements();
    if (op.kind == OpKind::kAllGather || op.kind == OpKind::kReduceScatter) {
      const int64_t part = split.count(group.position(rank));
      const bool gather = op.kind == OpKind::kAllGather;
      return lies_in(op, rank, op.reads, source_offset(program_, op, rank), gather ? part : all) &&
             lies_in(op, rank, op.writes, destination_offset(program_, op, rank),
                     gather ? all : part);
    }
    const int64_t destination =
        op.kind == OpKind::kAllToAll ? split.count(group.position(rank)) * group.size : all;
    return one_size(op, rank, op.reads, all) && one_size(op, rank, op.writes, destination) &&
           same_elsewhere(op, rank, all);
  }

  /// What an op moves lies in its operand, which is split from the same vector: as this rank's part
  /// of it, or as a part of a value that holds more (gathered from or reduced into in place).
  bool lies_in(const Op& op, int64_t rank, const std::vector<Operand>& operands, int64_t offset,
               int64_t needed) {
    for (const Operand& operand : operands) {
      const ValueArray& array = program_.arrays[operand.array];
      const int64_t elements = value_elements(program_, array, rank);
      const bool same_vector = array.partition.elements == op.partition.elements;
      if (same_vector && (needed == 0 || (offset >= 0 && offset + needed <= elements))) continue;
      op_problem(
          "malformed", op,
          fmt::format("needs {} elements of {} on rank {}, which has {}{}", needed, array.name,
                      rank, elements,
                      same_vector ? fmt::format(", from {} on", offset)
                                  : fmt::format(" of {}, not of {}", array.partition.elements,
                                                op.partition.elements)));
      return false;
    }
    return true;
  }

  bool one_size(const Op& op, int64_t rank, const std::vector<Operand>& operands,
                int64_t expected) {
    for (const Operand& operand : operands) {
      const int64_t elements = operand_elements(program_, operand, rank);
      if (elements == expected) continue;
      op_problem("malformed", op,
                 fmt::format("needs {} elements of {} on rank {}, which has {}", expected,
                             program_.arrays[operand.array].name, rank, elements));
      return false;
    }
    return true;
  }

  /// A collective over the whole operand moves equally much on all ranks of the group.
  bool same_elsewhere(const Op& op, int64_t rank, int64_t all) {
    if (op.kind != OpKind::kAllReduce && op.kind != OpKind::kBroadcast && op.kind != OpKind::kShift)
      return true;
    const Group& group = program_.groups[op.group];
    const int64_t first = group.member(rank, 0);
    const bool same_class = program_.members.empty() ||
                            std::count(program_.members.begin(), program_.members.end(), first);
    if (!same_class) return true;
    const int64_t elsewhere = transfer_split(program_, op, first).elements();
    if (elsewhere == all) return true;
    op_problem("malformed", op,
               fmt::format("moves {} elements on rank {} and {} on rank {} of the same group", all,
                           rank, elsewhere, first));
    return false;
  }

  int64_t rank_class_;
  Findings& findings_;
  const Program& program_;
  std::vector<int64_t> sample_;  // ranks
  std::vector<const Repeat*> enclosing_;
};

}  // namespace

void check_structure(int64_t rank_class, Findings& findings) {
  StructureCheck(rank_class, findings).run();
}

void check_classes(Findings& findings) {
  const std::vector<Program>& classes = findings.classes();
  const int64_t ranks = classes[0].ranks;
  std::vector<int64_t> owner(std::max<int64_t>(ranks, 0), -1);
  for (size_t c = 0; c < classes.size(); ++c) {
    const int64_t rank_class = static_cast<int64_t>(c);
    if (classes[c].ranks != ranks || ranks < 1) {
      findings.add(
          "malformed", {rank_class},
          fmt::format("has a world of {} ranks, rank class 0 one of {}", classes[c].ranks, ranks));
      return;
    }
    const size_t streams = std::min(classes[0].streams.size(), classes[c].streams.size());
    if (!std::equal(classes[0].streams.begin(), classes[0].streams.begin() + streams,
                    classes[c].streams.begin())) {
      findings.add("malformed", {rank_class}, "its streams differ from those of rank class 0");
    }
    for (const int64_t rank : class_ranks(classes[c])) {
      if (rank < 0 || rank >= ranks || owner[rank] >= 0) {
        findings.add("malformed", {rank_class},
                     fmt::format("rank {} is outside the world or in two classes", rank));
        return;
      }
      owner[rank] = rank_class;
    }
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (owner[rank] < 0)
      findings.add("malformed", {0}, fmt::format("rank {} is in no class", rank));
  }
}

}  // namespace strait::program
