#include "tests/verify/reference_check.h"

#include <algorithm>
#include <map>

#include "strait/program/lifetime.h"
#include "strait/program/roll.h"
#include "strait/program/transfer.h"

namespace strait::program {

namespace {

using Value = std::pair<int, int64_t>;

bool names(const std::vector<Operand>& operands, const Value& value) {
  return std::any_of(operands.begin(), operands.end(), [&](const Operand& operand) {
    return operand.array == value.first && operand.index.constant == value.second;
  });
}

Value value_of(const Operand& operand) { return {operand.array, operand.index.constant}; }
bool frees(const Op& op) { return op.kind == OpKind::kFree; }

/// It uses what the value held before.
bool uses_before(const Operand& written) {
  return written.access == Access::kUpdate || written.access == Access::kAdd;
}

/// The rule of Op, for i earlier than j in the program.
bool must_precede(const Op& i, const Op& j) {
  if (!is_communication(i.kind)) return true;  // inline: ended before anything after it is issued
  if (i.stream == j.stream) return true;
  const auto touches_any = [&](const std::vector<Operand>& operands) {
    return std::any_of(operands.begin(), operands.end(), [&](const Operand& operand) {
      return touches(i, operand.array, operand.index.constant);
    });
  };
  if (touches_any(j.waits)) return true;
  if (frees(j)) return false;
  if (touches_any(j.writes)) return true;
  return std::any_of(j.reads.begin(), j.reads.end(),
                     [&](const Operand& operand) { return names(i.writes, value_of(operand)); });
}

/// Last op before `end` that writes or frees the value; null when there is none.
const Op* last_change(const std::vector<Op>& ops, size_t end, const Value& value,
                      size_t* where = nullptr) {
  for (size_t i = end; i-- > 0;) {
    const bool changes =
        names(ops[i].writes, value) || (frees(ops[i]) && names(ops[i].reads, value));
    if (!changes) continue;
    if (where != nullptr) *where = i;
    return &ops[i];
  }
  return nullptr;
}

std::string check_write(const std::vector<Op>& ops, size_t j, const Operand& operand) {
  const Value value = value_of(operand);
  size_t i = 0;
  const Op* before = last_change(ops, j, value, &i);
  if (before == nullptr || frees(*before) || before->stream == ops[j].stream) return "";
  if (uses_before(operand) || names(ops[j].reads, value) || names(ops[j].waits, value)) return "";
  for (size_t k = i + 1; k < j; ++k) {
    if (names(ops[k].reads, value) || names(ops[k].waits, value)) return "";
  }
  return "concurrent-write";
}

/// What an op may not do to one value at once: write it twice, or read and write it where its kind
/// does not work in place.
std::string check_twice(const Op& op) {
  if (frees(op)) return "";
  const bool in_place = is_communication(op.kind) && op.kind != OpKind::kAllToAll &&
                        op.kind != OpKind::kShift;  // a kernel says that it updates
  for (size_t w = 0; w < op.writes.size(); ++w) {
    const std::vector<Operand> others(op.writes.begin() + static_cast<std::ptrdiff_t>(w) + 1,
                                      op.writes.end());
    if (names(others, value_of(op.writes[w]))) return "written twice";
    if (!in_place && names(op.reads, value_of(op.writes[w]))) return "read while written";
  }
  return "";
}

/// Life of all values on one rank.
std::string check_rank(const Program& program, const std::vector<Op>& ops) {
  const auto transient = [&](const Operand& operand) {
    return program.arrays[operand.array].lifetime == Lifetime::kTransient;
  };
  for (size_t j = 0; j < ops.size(); ++j) {
    if (const std::string why = check_twice(ops[j]); !why.empty()) return why;
    std::vector<Operand> used = ops[j].reads;
    for (const Operand& operand : ops[j].writes)
      if (frees(ops[j]) || uses_before(operand)) used.push_back(operand);
    for (const Operand& operand : used) {
      const Op* before = last_change(ops, j, value_of(operand));
      if (transient(operand) && (before == nullptr || frees(*before)))
        return "used while not alive";
    }
    for (const Operand& operand : ops[j].writes) {
      if (frees(ops[j])) continue;
      if (const std::string why = check_write(ops, j, operand); !why.empty()) return why;
      const Op* end = last_change(ops, ops.size(), value_of(operand));
      if (transient(operand) && !frees(*end)) return "not freed";
    }
  }
  return "";
}

/// A transfer of one rank and those of other ranks that it meets.
struct Place {
  int64_t rank = 0;
  size_t at = 0;
  std::string what;
};
using Meeting = std::vector<Place>;

class World {
 public:
  explicit World(const std::vector<Program>& classes) {
    const int64_t ranks = classes[0].ranks;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (const Program& program : classes) {
        const auto& members = program.members;
        if (!members.empty() && std::find(members.begin(), members.end(), rank) == members.end())
          continue;
        programs_.push_back(&program);
      }
      orders_.push_back(reference_order(*programs_.back()));
    }
  }

  std::string check() {
    for (size_t rank = 0; rank < orders_.size(); ++rank) {
      if (std::string why = check_rank(*programs_[rank], orders_[rank].ops); !why.empty())
        return why;
    }
    if (std::string why = match(); !why.empty()) return why;
    return run() ? "" : "cycle";
  }

 private:
  using Key = std::vector<int64_t>;  // members, stream, then sender and receiver of a message

  std::string describe(int64_t rank, const Op& op) const {
    std::string text =
        op.kind == OpKind::kSend || op.kind == OpKind::kReceive ? "message" : op_kind_name(op.kind);
    if (op.kind == OpKind::kBroadcast) text += std::to_string(op.peer.constant);
    if (op.kind == OpKind::kBarrier) return text;
    const Split split = transfer_split(*programs_[rank], op, rank);
    return text + " " + std::to_string(split.elements()) + " " +
           std::to_string(split.partition.grain) + " " +
           dtype_name(transfer_array(*programs_[rank], op).dtype) + " " + op.codec;
  }

  /// Fills meetings_, pairing the n-th transfers of all who take part.
  std::string match() {
    std::map<Key, std::map<int64_t, std::vector<Place>>> sequences;  // by key, by rank
    for (int64_t rank = 0; rank < static_cast<int64_t>(orders_.size()); ++rank) {
      const std::vector<Op>& ops = orders_[rank].ops;
      for (size_t at = 0; at < ops.size(); ++at) {
        if (!is_communication(ops[at].kind)) continue;
        const Group& group = programs_[rank]->groups[ops[at].group];
        Key key;
        std::vector<int64_t> parties;
        for (int64_t k = 0; k < group.size; ++k) key.push_back(group.member(rank, k));
        parties = key;
        key.push_back(-ops[at].stream);
        const int64_t peer = group.member(rank, ops[at].peer.constant);
        if (ops[at].kind == OpKind::kSend) parties = {rank, peer};
        if (ops[at].kind == OpKind::kReceive) parties = {peer, rank};
        if (parties.size() != static_cast<size_t>(group.size) || ops[at].kind == OpKind::kSend ||
            ops[at].kind == OpKind::kReceive) {
          key.push_back(-100);
          key.insert(key.end(), parties.begin(), parties.end());
        }
        auto& by_rank = sequences[key];
        for (const int64_t party : parties) by_rank[party];
        by_rank[rank].push_back({rank, at, describe(rank, ops[at])});
      }
    }
    for (const auto& [key, by_rank] : sequences) {
      const size_t count = by_rank.begin()->second.size();
      for (size_t n = 0; n < count; ++n) {
        Meeting meeting;
        for (const auto& [rank, places] : by_rank) {
          if (places.size() != count || places[n].what != by_rank.begin()->second[n].what)
            return "unmatched";
          meeting.push_back(places[n]);
        }
        meetings_.push_back(meeting);
      }
    }
    return "";
  }

  bool can_start(const Place& place, const std::vector<std::vector<char>>& ended) const {
    const ReferenceOrder& order = orders_[place.rank];
    for (size_t i = 0; i < place.at; ++i) {
      if (order.before[i][place.at] && !ended[place.rank][i]) return false;
    }
    return true;
  }

  /// Lets operations end until nothing changes; true when all have.
  bool run() const {
    std::vector<std::vector<char>> ended;
    for (const ReferenceOrder& order : orders_) ended.emplace_back(order.ops.size(), 0);
    for (bool changed = true; changed;) {
      changed = false;
      for (int64_t rank = 0; rank < static_cast<int64_t>(orders_.size()); ++rank) {
        for (size_t at = 0; at < ended[rank].size(); ++at) {
          if (ended[rank][at] || is_communication(orders_[rank].ops[at].kind)) continue;
          if (!can_start({rank, at, ""}, ended)) continue;
          changed = true;
          ended[rank][at] = 1;
        }
      }
      for (const Meeting& meeting : meetings_) {
        if (ended[meeting[0].rank][meeting[0].at]) continue;
        const auto ready = [&](const Place& place) { return can_start(place, ended); };
        if (!std::all_of(meeting.begin(), meeting.end(), ready)) continue;
        for (const Place& place : meeting) ended[place.rank][place.at] = 1;
        changed = true;
      }
    }
    return std::all_of(ended.begin(), ended.end(), [](const std::vector<char>& rank) {
      return std::find(rank.begin(), rank.end(), 0) == rank.end();
    });
  }

  std::vector<const Program*> programs_;  // by rank
  std::vector<ReferenceOrder> orders_;    // by rank
  std::vector<Meeting> meetings_;
};

}  // namespace

bool touches(const Op& op, int array, int64_t index) {
  return names(op.reads, {array, index}) || names(op.writes, {array, index});
}

ReferenceOrder reference_order(const Program& program) {
  ReferenceOrder order;
  for (Node& node : unroll(program).body) order.ops.push_back(std::get<Op>(std::move(node)));
  const size_t count = order.ops.size();
  order.before.assign(count, std::vector<char>(count, 0));
  for (size_t j = 0; j < count; ++j) {
    for (size_t k = 0; k < j; ++k) {
      if (!must_precede(order.ops[k], order.ops[j])) continue;
      order.before[k][j] = 1;
      for (size_t i = 0; i < k; ++i) order.before[i][j] |= order.before[i][k];
    }
  }
  return order;
}

std::string reference_check(const std::vector<Program>& classes) { return World(classes).check(); }

}  // namespace strait::program
