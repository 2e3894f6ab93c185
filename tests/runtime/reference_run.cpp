#include "tests/runtime/reference_run.h"

#include <cmath>
#include <deque>

#include "strait/base/errors.h"
#include "strait/program/classes.h"
#include "strait/program/program_set.h"
#include "strait/program/transfer.h"
#include "tests/program/test_kernels.h"

namespace strait::runtime {

using program::Access;
using program::Op;
using program::Operand;
using program::OpKind;
using program::Program;

double rounded(Dtype dtype, double value) {
  return dtype == Dtype::kFloat32 ? static_cast<double>(static_cast<float>(value)) : value;
}

double touched_number(Access access, double before, double read, double salt) {
  constexpr double kBound = 1009;
  const double fresh = std::fmod(read + salt, kBound);
  if (access == Access::kAdd) return before + fresh;
  return access == Access::kUpdate ? std::fmod(before + fresh, kBound) : fresh;
}

namespace {

/// One rank inside a program.
struct RankRun {
  int64_t rank = 0;
  const Program* program = nullptr;
  std::vector<Op> ops;  // executed ones, indices evaluated
  size_t next = 0;
  std::map<std::pair<std::string, int64_t>, Numbers> transients;
  ReferenceRun::Residents* residents = nullptr;
};

Op evaluated(Op op, const program::Loops& loops) {
  const auto fix = [&](program::Index& index) { index = {program::evaluate(index, loops)}; };
  for (auto* operands : {&op.reads, &op.writes})
    for (Operand& operand : *operands) fix(operand.index);
  fix(op.peer);
  return op;
}

/// All ranks of one execution.
class Execution {
 public:
  Execution(const std::vector<Program>& classes, const program::Counters& counters,
            std::vector<ReferenceRun::Residents>& residents) {
    for (size_t rank = 0; rank < residents.size(); ++rank) {
      RankRun& run = ranks_.emplace_back();
      run.rank = static_cast<int64_t>(rank);
      run.program = &program::class_of(classes, run.rank);
      run.residents = &residents[rank];
      bind(run);
      program::Loops loops;
      program::for_each_instance(*run.program, loops, counters,
                                 [&](const Op& op, const program::Loops& values) {
                                   run.ops.push_back(evaluated(op, values));
                                 });
    }
  }

  int64_t run() {
    int64_t ops = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (RankRun& rank : ranks_) moved = advance(rank) || moved;
    }
    for (const RankRun& rank : ranks_) {
      ensure(rank.next == rank.ops.size(), "the reference does not get on");
      ops += static_cast<int64_t>(rank.ops.size());
    }
    return ops;
  }

 private:
  /// The residents that do not exist yet, as zeros.
  static void bind(RankRun& run) {
    for (const program::ValueArray& array : run.program->arrays) {
      if (array.lifetime == program::Lifetime::kTransient) continue;
      const auto elements = program::value_elements(*run.program, array, run.rank);
      for (int64_t k = 0; k < array.count; ++k)
        run.residents->try_emplace({array.name, k}, Numbers(static_cast<size_t>(elements)));
    }
  }

  static const program::ValueArray& array_of(const RankRun& run, const Operand& operand) {
    return run.program->arrays[operand.array];
  }

  static Numbers& value(RankRun& run, const Operand& operand) {
    const program::ValueArray& array = array_of(run, operand);
    const std::pair<std::string, int64_t> key{array.name, operand.index.constant};
    if (array.lifetime != program::Lifetime::kTransient) return run.residents->at(key);
    Numbers& numbers = run.transients[key];
    numbers.resize(static_cast<size_t>(program::value_elements(*run.program, array, run.rank)));
    return numbers;
  }

  /// Executes one op of a rank, and with a transfer those of all who take part; false when some of
  /// them are not there yet.
  bool advance(RankRun& run) {
    if (run.next == run.ops.size()) return false;
    const Op& op = run.ops[run.next];
    if (op.kind == OpKind::kReceive && mail(run, op, op.peer.constant, run.rank).empty())
      return false;
    if (op.kind == OpKind::kReceive)
      receive(run, op);
    else if (op.kind == OpKind::kSend)
      send(run, op);
    else if (program::is_communication(op.kind))
      return meet(run, op);
    else
      inline_op(run, op);
    ++run.next;
    return true;
  }

  static void inline_op(RankRun& run, const Op& op) {
    if (op.kind == OpKind::kCopy) value(run, op.writes[0]) = Numbers(value(run, op.reads[0]));
    if (op.kind == OpKind::kKernel) touch(run, op);
  }

  static void touch(RankRun& run, const Op& op) {
    for (const Operand& changed : op.writes) {
      const program::ValueArray& array = array_of(run, changed);
      Numbers& numbers = value(run, changed);
      for (size_t e = 0; e < numbers.size(); ++e) {
        double read = 0;
        for (const Operand& operand : op.reads) {
          const Numbers& source = value(run, operand);
          if (!source.empty()) read += source[e % source.size()];
        }
        const double salt = static_cast<double>(run.rank + 3 * changed.index.constant + 1);
        numbers[e] = rounded(array.dtype, touched_number(changed.access, numbers[e], read, salt));
      }
    }
  }

  /// Messages of a stream that nobody has taken, oldest first, by (members, stream, from, to).
  std::deque<Numbers>& mail(const RankRun& run, const Op& op, int64_t from_position, int64_t to) {
    const program::Group& group = run.program->groups[op.group];
    std::vector<int64_t> key = group.members(run.rank);
    key.insert(key.end(), {op.stream, group.member(run.rank, from_position), to});
    return mail_[key];
  }

  void send(RankRun& run, const Op& op) {
    const program::Group& group = run.program->groups[op.group];
    const int64_t to = group.member(run.rank, op.peer.constant);
    mail(run, op, group.position(run.rank), to).push_back(value(run, op.reads[0]));
  }

  void receive(RankRun& run, const Op& op) {
    std::deque<Numbers>& waiting = mail(run, op, op.peer.constant, run.rank);
    value(run, op.writes[0]) = waiting.front();
    waiting.pop_front();
  }

  /// A collective, once all its ranks stand before one of the same stream.
  bool meet(RankRun& run, const Op& op) {
    const std::vector<int64_t> members = run.program->groups[op.group].members(run.rank);
    std::vector<RankRun*> parties;
    for (const int64_t rank : members) {
      RankRun& party = ranks_[static_cast<size_t>(rank)];
      if (party.next == party.ops.size()) return false;
      const Op& other = party.ops[party.next];
      if (other.kind != op.kind || other.stream != op.stream ||
          party.program->groups[other.group].members(rank) != members)
        return false;
      parties.push_back(&party);
    }
    if (op.kind != OpKind::kBarrier) collective(op, parties);
    for (RankRun* party : parties) ++party->next;
    return true;
  }

  static void collective(const Op& op, const std::vector<RankRun*>& parties) {
    std::vector<Numbers> sources;
    for (RankRun* party : parties) sources.push_back(value(*party, own(*party).reads[0]));
    for (size_t position = 0; position < parties.size(); ++position) {
      RankRun& party = *parties[position];
      const Operand& target = own(party).writes[0];
      const Numbers made =
          result(op, sources, static_cast<int64_t>(position), array_of(party, target).dtype);
      Numbers& there = value(party, target);
      for (size_t e = 0; e < made.size(); ++e)
        there[e] = target.access == Access::kAdd
                       ? rounded(array_of(party, target).dtype, there[e] + made[e])
                       : made[e];
    }
  }

  static const Op& own(const RankRun& run) { return run.ops[run.next]; }

  /// What the member at `position` gets.
  static Numbers result(const Op& op, const std::vector<Numbers>& sources, int64_t position,
                        Dtype dtype) {
    const int64_t size = static_cast<int64_t>(sources.size());
    const program::Partition& partition = op.partition;
    switch (op.kind) {
      case OpKind::kBroadcast:
        return sources[static_cast<size_t>(op.peer.constant)];
      case OpKind::kShift:
        return sources[static_cast<size_t>((position + 2 * size - 1 - op.peer.constant) % size)];
      case OpKind::kAllReduce:
        return sum(sources, 0, static_cast<int64_t>(sources[0].size()), dtype);
      case OpKind::kReduceScatter:
        return sum(sources, partition.begin(position), partition.end(position), dtype);
      default:
        break;
    }
    Numbers all;
    for (int64_t from = 0; from < size; ++from) {
      const Numbers& source = sources[static_cast<size_t>(from)];
      const bool gathers = op.kind == OpKind::kAllGather;
      const int64_t begin = gathers ? 0 : partition.begin(position);
      const int64_t count = partition.count(gathers ? from : position);
      all.insert(all.end(), source.begin() + begin, source.begin() + begin + count);
    }
    return all;
  }

  /// In the order of the ranks, rounded after every addition.
  static Numbers sum(const std::vector<Numbers>& sources, int64_t begin, int64_t end, Dtype dtype) {
    Numbers total(sources[0].begin() + begin, sources[0].begin() + end);
    for (size_t from = 1; from < sources.size(); ++from)
      for (size_t e = 0; e < total.size(); ++e)
        total[e] = rounded(dtype, total[e] + sources[from][static_cast<size_t>(begin) + e]);
    return total;
  }

  std::vector<RankRun> ranks_;
  std::map<std::vector<int64_t>, std::deque<Numbers>> mail_;
};

}  // namespace

int64_t ReferenceRun::run(const std::vector<Program>& classes, const program::Counters& counters) {
  return Execution(classes, counters, residents_).run();
}

}  // namespace strait::runtime
