#include "strait/program/roll.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>
#include <unordered_map>

#include "strait/program/indices.h"

namespace strait::program {

namespace {

/// Its constant may differ between the repetitions of a body.
bool may_advance(const Index& index) { return index.other_loop == kNoLoop; }

/// The same through the bodies of repeats.
template <class AnyNode, class Visit>
void visit_node_indices(AnyNode& node, Visit& visit) {
  if (auto* op = std::get_if<Op>(&node)) {
    visit_indices(*op, visit);
  } else {
    for (auto& inner : std::get<Repeat>(node).body) visit_node_indices(inner, visit);
  }
}

/// Writes all that must be equal in every repetition into a string of bytes. Loops that begin
/// inside the node are numbered from its outside inwards, so that their ids do not matter.
class Signature {
 public:
  explicit Signature(std::span<const ValueArray> arrays) : arrays_(arrays) {}

  std::string text;

  void add(const Node& node) {
    if (const Op* op = std::get_if<Op>(&node)) {
      add_op(*op);
      return;
    }
    const Repeat& repeat = std::get<Repeat>(node);
    put('R');
    put(repeat.first);
    put(repeat.step);
    put(repeat.count);
    put(repeat.variable);
    put(repeat.body.size());
    local_.push_back(repeat.loop);
    for (const Node& inner : repeat.body) add(inner);
    local_.pop_back();
  }

 private:
  template <class T>
  void put(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      put(value.size());
      text += value;
    } else {
      char bytes[sizeof(T)];
      std::memcpy(bytes, &value, sizeof(T));
      text.append(bytes, sizeof(T));
    }
  }

  void add_index(const Index& index) {
    add_loop(index.loop, index.scale);
    put(index.modulo);
    if (may_advance(index)) return;
    add_loop(index.other_loop, index.other_scale);
    put(index.constant);
  }

  void add_loop(int loop, int64_t scale) {
    const auto found = std::find(local_.rbegin(), local_.rend(), loop);
    const bool here = found != local_.rend();
    put(here ? static_cast<int>(found - local_.rbegin()) : loop);
    put(here);
    put(scale);
  }

  void add_operands(const std::vector<Operand>& operands) {
    put(operands.size());
    for (const Operand& operand : operands) {
      put(operand.array);
      put(operand.access);
      put(operand.slot);
      add_index(operand.index);
      if (static_cast<size_t>(operand.array) < arrays_.size() &&
          arrays_[static_cast<size_t>(operand.array)].joined)
        put(operand.index.constant);
    }
  }

  void add_op(const Op& op) {
    put('O');
    put(op.kind);
    add_operands(op.reads);
    add_operands(op.writes);
    add_operands(op.waits);
    put(op.stream);
    put(op.group);
    put(op.partition.elements);
    put(op.partition.grain);
    put(op.codec);
    put(op.kernel);
    put(op.piece_bytes);
    put(op.metadata_bytes);
    put(op.attributes.size());
    for (const Attribute& attribute : op.attributes) add_attribute(attribute);
    add_index(op.peer);
  }

  void add_attribute(const Attribute& attribute) {
    put(attribute.index());
    std::visit(
        [this](const auto& value) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, Index>)
            add_index(value);
          else
            put(value);
        },
        attribute);
  }

  std::span<const ValueArray> arrays_;
  std::vector<int> local_;
};

/// A possible repeat: `period` nodes, `count` times.
struct Run {
  int64_t period = 1;
  int64_t count = 1;
};

/// Finds the cheapest split of a list of nodes into single nodes and runs.
class Roller {
 public:
  Roller(const std::vector<Node>& nodes, std::span<const ValueArray> arrays)
      : size_(static_cast<int64_t>(nodes.size())) {
    std::unordered_map<std::string, int> known;
    for (const Node& node : nodes) {
      Signature signature(arrays);
      signature.add(node);
      const int next = static_cast<int>(known.size());
      keys_.push_back(known.emplace(std::move(signature.text), next).first->second);
      constants_.push_back(plain_constants(node));
      weights_.push_back(operations_of(node));
    }
    runs_.resize(size_);
    covers_.resize(size_);
  }

  static std::vector<int64_t> plain_constants(const Node& node) {
    std::vector<int64_t> constants;
    auto collect = [&](const Index& index) {
      if (may_advance(index)) constants.push_back(index.constant);
    };
    visit_node_indices(node, collect);
    return constants;
  }

  /// For every start the run that the cheapest split takes there; count 1 = a single node.
  std::vector<Run> split() {
    for (int64_t period = 1; period <= std::min(size_ / 2, kMaxPeriod); ++period)
      if (repetitions(period) >= period) find_runs(period);
    std::vector<int64_t> cost(size_ + 1, 0), prefix(size_ + 1, 0);
    for (int64_t i = 0; i < size_; ++i) prefix[i + 1] = prefix[i] + weights_[i];
    std::vector<Run> best(size_);
    for (int64_t i = size_ - 1; i >= 0; --i) {
      cost[i] = cost[i + 1] + weights_[i];
      for (const Run& run : runs_[i]) {
        for (int64_t count = run.count; count >= std::max<int64_t>(2, run.count - 1); --count) {
          const int64_t end = i + count * run.period;
          const int64_t here = cost[end] + prefix[i + run.period] - prefix[i] + 1;
          if (here >= cost[i]) continue;
          cost[i] = here;
          best[i] = {run.period, count};
        }
      }
    }
    return best;
  }

 private:
  static int64_t operations_of(const Node& node) {
    if (std::holds_alternative<Op>(node)) return 1;
    int64_t total = 1;
    for (const Node& inner : std::get<Repeat>(node).body) total += operations_of(inner);
    return total;
  }

  /// True when the constants of nodes i, i + period, i + 2 period advance evenly.
  bool even(int64_t i, int64_t period) const {
    const auto &a = constants_[i], &b = constants_[i + period], &c = constants_[i + 2 * period];
    for (size_t k = 0; k < a.size(); ++k) {
      if (b[k] - a[k] != c[k] - b[k]) return false;
    }
    return true;
  }

  /// Nodes whose key repeats one period later. A run has at least a period of them; to count them
  /// is many times cheaper than to look for stretches.
  int64_t repetitions(int64_t period) const {
    const int* const keys = keys_.data();
    const int* const later = keys + period;
    int64_t count = 0;
    for (int64_t i = 0; i < size_ - period; ++i) count += keys[i] == later[i] ? 1 : 0;
    return count;
  }

  /// Finds the stretches of nodes whose key repeats one period later.
  void find_runs(int64_t period) {
    for (int64_t i = size_ - period; i > 0; --i) {
      const int64_t end = i;
      while (i > 0 && keys_[i - 1] == keys_[i - 1 + period]) --i;
      if (end - i >= period && !covered(i, end + period, period)) record_runs(i, end, period);
    }
  }

  /// True when what repeats evenly with a part of this period holds all of [begin, end): its runs
  /// are as long and their bodies shorter.
  bool covered(int64_t begin, int64_t end, int64_t period) const {
    const Cover& cover = covers_[begin];
    return cover.end >= end && period % cover.period == 0;
  }

  /// Records the longest run of bodies of `period` nodes that begins at each node. The keys of
  /// [begin, end) repeat one period later.
  void record_runs(int64_t begin, int64_t end, int64_t period) {
    int64_t uneven = end - period;  // the next node from i on that does not advance evenly
    for (int64_t i = end - 1; i >= begin; --i) {
      if (i < end - period && !even(i, period)) uneven = i;
      if (end - i < period) continue;
      const int64_t steady = std::max<int64_t>(uneven - i, 0);
      runs_[i].push_back({period, 2 + steady / period});
      Cover& cover = covers_[i];
      const int64_t even_end = uneven + 2 * period;
      if (steady > 0 && cover.end < even_end) cover = {period, even_end};
    }
  }

  /// Nodes that repeat evenly with this period, up to `end`.
  struct Cover {
    int64_t period = 1;
    int64_t end = 0;
  };

  int64_t size_;
  std::vector<int> keys_;
  std::vector<std::vector<int64_t>> constants_;
  std::vector<int64_t> weights_;
  std::vector<std::vector<Run>> runs_;
  std::vector<Cover> covers_;
};

/// Plain constants of `period` nodes from `begin` on, in the order of visit_node_indices.
std::vector<int64_t> body_constants(const std::vector<Node>& nodes, int64_t begin, int64_t period) {
  std::vector<int64_t> constants;
  for (int64_t i = begin; i < begin + period; ++i) {
    const std::vector<int64_t> one = Roller::plain_constants(nodes[i]);
    constants.insert(constants.end(), one.begin(), one.end());
  }
  return constants;
}

/// The first index attribute of a kernel, or nullptr.
const Index* first_attribute(const Op& op) {
  for (const Attribute& attribute : op.attributes)
    if (const Index* index = std::get_if<Index>(&attribute)) return index;
  return nullptr;
}

/// Lets the loop variable be the first index attribute of a kernel that advances, if every
/// difference is a multiple of that one's.
void choose_variable(Repeat& repeat, const std::vector<int64_t>& first,
                     const std::vector<int64_t>& delta) {
  size_t at = 0;
  for (const Node& node : repeat.body) {
    const Op* op = std::get_if<Op>(&node);
    if (op == nullptr) {
      at += Roller::plain_constants(node).size();
      continue;
    }
    const Index* counted = first_attribute(*op);
    visit_indices(*op, [&](const Index& index) {
      if (!may_advance(index)) return;
      if (&index == counted && delta[at] != 0 && repeat.step == 0) {
        repeat.first = first[at];
        repeat.step = delta[at];
      }
      ++at;
    });
  }
  const auto divides = [&](int64_t d) { return repeat.step != 0 && d % repeat.step == 0; };
  if (std::all_of(delta.begin(), delta.end(), divides)) return;
  repeat.first = 0;
  repeat.step = 1;
}

void list_operands(const Node& node, std::vector<std::tuple<int, Index, bool>>& list) {
  if (const Repeat* repeat = std::get_if<Repeat>(&node)) {
    for (const Node& inner : repeat->body) list_operands(inner, list);
    return;
  }
  const Op& op = std::get<Op>(node);
  for (const Operand& operand : op.reads) list.emplace_back(operand.array, operand.index, false);
  for (const Operand& operand : op.writes) {
    if (reads_before(operand)) list.emplace_back(operand.array, operand.index, false);
    list.emplace_back(operand.array, operand.index, true);
  }
}

/// How fast an index advances with a loop.
int64_t scale_of(const Index& index, int loop) {
  return index.loop == loop ? index.scale : index.other_loop == loop ? index.other_scale : 0;
}

/// Arrays of which an element written in one iteration is used in a later one.
void find_carried(Repeat& repeat) {
  std::vector<std::tuple<int, Index, bool>> list;
  for (const Node& node : repeat.body) list_operands(node, list);
  std::set<int> carried;
  for (size_t w = 0; w < list.size(); ++w) {
    const auto& [array, written, writes] = list[w];
    if (!writes) continue;
    for (size_t t = 0; t < list.size(); ++t) {
      const auto& [other, used, other_writes] = list[t];
      if (other != array || other_writes) continue;
      const int64_t scale = scale_of(written, repeat.loop);
      const bool moves = scale != 0 && scale == scale_of(used, repeat.loop);
      const bool stays = scale == 0 && scale_of(used, repeat.loop) == 0;
      if (moves) {
        const int64_t step = scale * repeat.step;
        const int64_t gap = written.constant - used.constant;
        const int64_t lag = gap / step;
        if (gap % step == 0 && lag >= 1 && lag < repeat.count) carried.insert(array);
      } else if (stays && written == used && t < w) {
        carried.insert(array);
      }
    }
  }
  repeat.carried.assign(carried.begin(), carried.end());
}

Repeat make_repeat(const std::vector<Node>& nodes, int64_t begin, const Run& run, int loop) {
  const std::vector<int64_t> first = body_constants(nodes, begin, run.period);
  std::vector<int64_t> delta = body_constants(nodes, begin + run.period, run.period);
  for (size_t k = 0; k < delta.size(); ++k) delta[k] -= first[k];
  Repeat repeat;
  repeat.loop = loop;
  repeat.count = run.count;
  repeat.step = 0;
  repeat.body.assign(nodes.begin() + begin, nodes.begin() + begin + run.period);
  choose_variable(repeat, first, delta);
  size_t at = 0;
  auto rewrite = [&](Index& index) {
    if (!may_advance(index)) return;
    if (delta[at] != 0) {
      const bool used = index.loop != kNoLoop;
      const int64_t scale = delta[at] / repeat.step;
      (used ? index.other_loop : index.loop) = loop;
      (used ? index.other_scale : index.scale) = scale;
      index.constant = first[at] - scale * repeat.first;
    }
    ++at;
  };
  for (Node& node : repeat.body) visit_node_indices(node, rewrite);
  find_carried(repeat);
  return repeat;
}

}  // namespace

std::vector<Node> roll(std::vector<Node> nodes, int& next_loop, const std::string& variable,
                       std::span<const ValueArray> arrays) {
  const std::vector<Run> split = Roller(nodes, arrays).split();
  std::vector<Node> result;
  for (size_t i = 0; i < nodes.size();) {
    const Run& run = split[i];
    if (run.count == 1) {
      result.push_back(std::move(nodes[i++]));
      continue;
    }
    Repeat repeat = make_repeat(nodes, static_cast<int64_t>(i), run, next_loop++);
    repeat.variable = variable;
    result.emplace_back(std::move(repeat));
    i += static_cast<size_t>(run.period * run.count);
  }
  return result;
}

Program unroll(const Program& program) {
  Program flat = program;
  flat.body.clear();
  flat.num_loops = 0;
  for_each_instance(program, [&](const Op& op, const std::vector<int64_t>& loops) {
    Op copy = op;
    visit_indices(copy, [&](Index& index) { index = Index{evaluate(index, loops)}; });
    flat.body.emplace_back(std::move(copy));
  });
  return flat;
}

}  // namespace strait::program
