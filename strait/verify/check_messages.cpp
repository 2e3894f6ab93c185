// Whether the ranks of every group agree on what they exchange, and in which order.
#include <fmt/format.h>

#include <set>
#include <tuple>

#include "strait/program/exchange.h"
#include "strait/program/transfer.h"
#include "strait/verify/findings.h"

namespace strait::program {

namespace {

class MessageCheck {
 public:
  explicit MessageCheck(Findings& findings) : findings_(findings), exchange_(findings.classes()) {}

  void run() {
    for (size_t k = 0; k < exchange_.channels().size(); ++k) {
      const int channel = static_cast<int>(k);
      const Group& group = exchange_.channels()[k].group;
      // Ranks of one class start the same collectives.
      if (findings_.classes().size() == 1 && !exchange_.has_messages(channel)) continue;
      for (int64_t rank = 0; rank < exchange_.ranks() && !findings_.full(); ++rank) {
        if (!group.holds(rank)) continue;
        compare_collectives(channel, group.base(rank), rank);
        if (exchange_.has_messages(channel)) compare_messages(channel, rank);
      }
    }
  }

 private:
  /// A rank and the class whose program it runs.
  struct Side {
    int64_t rank = 0;
    int64_t rank_class = 0;
  };
  Side side(int64_t rank) const { return {rank, exchange_.class_of(rank)}; }
  const Program& program(const Side& side) const { return findings_.classes()[side.rank_class]; }
  const Transfer& transfer(const Side& side, int64_t number) const {
    return exchange_.transfers(side.rank_class)[number];
  }
  std::string text(const Side& side, int64_t number) const {
    return fmt::format("`{}`", instance_text(program(side), transfer(side, number).instance));
  }

  std::string difference(const Side& a, const Op& first, const Side& b, const Op& second) const {
    if (first.codec != second.codec)
      return fmt::format("codec {} against {}", first.codec, second.codec);
    if (first.kind == OpKind::kBarrier) return "";
    const Split left = transfer_split(program(a), first, a.rank);
    const Split right = transfer_split(program(b), second, b.rank);
    if (left != right) {
      return fmt::format("{} elements by {} against {} by {}", left.elements(),
                         left.partition.grain, right.elements(), right.partition.grain);
    }
    const Dtype left_dtype = transfer_array(program(a), first).dtype;
    const Dtype right_dtype = transfer_array(program(b), second).dtype;
    if (left_dtype == right_dtype) return "";
    return fmt::format("{} against {}", dtype_name(left_dtype), dtype_name(right_dtype));
  }

  void report(const char* kind, const Side& a, int64_t mine, const std::string& sentence,
              const std::string& other) {
    findings_.add(kind, {a.rank_class, transfer(a, mine).op}, sentence, other);
  }

  void compare_collectives(int channel, int64_t base, int64_t rank) {
    const Side a = side(base), b = side(rank);
    if (a.rank_class == b.rank_class ||
        !compared_.emplace(channel, a.rank_class, b.rank_class, -1, -1).second)
      return;
    const std::vector<int64_t>& left = exchange_.collectives(a.rank_class, channel);
    const std::vector<int64_t>& right = exchange_.collectives(b.rank_class, channel);
    const std::string& where = exchange_.channels()[channel].name;
    for (size_t k = 0; k < std::max(left.size(), right.size()); ++k) {
      if (k >= left.size() || k >= right.size()) {
        const bool mine = k < left.size();
        const Side& more = mine ? a : b;
        const int64_t number = mine ? left[k] : right[k];
        return report(
            "collective-order", more, number,
            fmt::format("{}: rank class {} starts {} where class {} has nothing left", where,
                        more.rank_class, text(more, number), mine ? b.rank_class : a.rank_class),
            "");
      }
      const Transfer &first = transfer(a, left[k]), &second = transfer(b, right[k]);
      const bool same_kind = first.op->kind == second.op->kind && first.peer == second.peer;
      const std::string how = same_kind ? difference(a, *first.op, b, *second.op) : "";
      if (same_kind && how.empty()) continue;
      return report("collective-order", a, left[k],
                    fmt::format("{}: rank class {} starts {} where class {} starts {}{}", where,
                                a.rank_class, text(a, left[k]), b.rank_class, text(b, right[k]),
                                how.empty() ? "" : ": " + how),
                    print_op(program(b), *second.op));
    }
  }

  void compare_messages(int channel, int64_t rank) {
    const Group& group = exchange_.channels()[channel].group;
    const Side a = side(rank);
    const int64_t position = group.position(rank);
    for (const auto& [peer, sends] : exchange_.sends(a.rank_class, channel)) {
      const Side b = side(group.member(rank, peer));
      if (!compared_.emplace(channel, a.rank_class, b.rank_class, position, peer).second) continue;
      const auto& receives = exchange_.receives(b.rank_class, channel);
      const auto found = receives.find(position);
      pair_up(channel, a, sends, b,
              found == receives.end() ? std::vector<int64_t>{} : found->second);
    }
    for (const auto& [peer, receives] : exchange_.receives(a.rank_class, channel)) {
      const Side b = side(group.member(rank, peer));
      const auto& sends = exchange_.sends(b.rank_class, channel);
      if (sends.find(position) == sends.end()) pair_up(channel, b, {}, a, receives);
    }
  }

  void pair_up(int channel, const Side& sender, const std::vector<int64_t>& sends,
               const Side& receiver, const std::vector<int64_t>& receives) {
    const std::string& where = exchange_.channels()[channel].name;
    for (size_t k = 0; k < std::max(sends.size(), receives.size()); ++k) {
      if (k >= receives.size()) {
        return report("unmatched-message", sender, sends[k],
                      fmt::format("{}: rank class {} sends {} messages to rank {}, which receives "
                                  "{}; {} is the first "
                                  "without a receive",
                                  where, sender.rank_class, sends.size(), receiver.rank,
                                  receives.size(), text(sender, sends[k])),
                      "");
      }
      if (k >= sends.size()) {
        return report(
            "unmatched-message", receiver, receives[k],
            fmt::format(
                "{}: rank class {} receives {} messages from rank {}, which sends {}; {} is the "
                "first without a send",
                where, receiver.rank_class, receives.size(), sender.rank, sends.size(),
                text(receiver, receives[k])),
            "");
      }
      const Op &send = *transfer(sender, sends[k]).op,
               &receive = *transfer(receiver, receives[k]).op;
      const std::string how = difference(sender, send, receiver, receive);
      if (how.empty()) continue;
      return report("unmatched-message", sender, sends[k],
                    fmt::format("{}: {} of rank class {} meets {} of class {}: {}", where,
                                text(sender, sends[k]), sender.rank_class,
                                text(receiver, receives[k]), receiver.rank_class, how),
                    print_op(program(receiver), receive));
    }
  }

  Findings& findings_;
  Exchange exchange_;
  std::set<std::tuple<int, int64_t, int64_t, int64_t, int64_t>> compared_;
};

}  // namespace

void check_messages(Findings& findings) { MessageCheck(findings).run(); }

}  // namespace strait::program
