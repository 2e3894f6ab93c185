#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>

#include "strait/program/operation_text.h"
#include "strait/program/program.h"

namespace strait::program {

namespace {

constexpr size_t kStreamColumn = 76;
constexpr char kMark = '\x01';

const char* category_name(Category category) {
  switch (category) {
    case Category::kWeights:
      return "weights";
    case Category::kSecondary:
      return "secondary weights";
    case Category::kGradients:
      return "gradients";
    case Category::kOptimizer:
      return "optimizer";
    case Category::kActivations:
      return "activations";
    case Category::kBuffers:
      return "buffers";
  }
  return "?";
}

const char* lifetime_name(Lifetime lifetime) {
  switch (lifetime) {
    case Lifetime::kTransient:
      return "transient";
    case Lifetime::kResident:
      return "resident";
    case Lifetime::kCarryOut:
      return "carry out";
    case Lifetime::kCarryIn:
      return "carry in";
    case Lifetime::kCarry:
      return "carry";
  }
  return "?";
}

/// Writes operations with the names of the loops around them, or with their values.
class Printer {
 public:
  Printer(const Program& program, const std::vector<int64_t>* loops)
      : program_(program), loops_(loops) {
    name_loops(program.body);
  }

  std::string op_text(const Op& op) const;
  trace::OperationText marked_text(const Op& op);
  void add_nodes(const std::vector<Node>& nodes, size_t indent);
  void add_header();
  std::string take() { return std::move(text_); }

 private:
  void name_loops(const std::vector<Node>& nodes);
  std::string loop_name(int loop) const;
  bool has_values(const Index& index) const;
  std::string term_text(int loop, int64_t scale) const;
  std::string index_text(const Index& index) const;
  std::string attribute_text(const AttributeInfo& info, const Attribute& attribute) const;
  bool mark_index(const Index& index) const;
  std::optional<int> place_of(int loop) const;
  std::string operand_text(const Operand& operand) const;
  std::string list_text(const std::vector<Operand>& operands) const;
  std::string subject(const Op& op) const;
  std::string results(const Op& op) const;
  std::string peer(const Op& op) const;
  std::string call(const Op& op) const;
  std::string among(const Op& op) const;
  std::string tail(const Op& op) const;
  void add_line(size_t indent, const Op& op);
  size_t add_frees(const std::vector<Node>& nodes, size_t at, size_t indent);
  std::string members_text() const;
  std::string array_text(const ValueArray& array) const;

  const Program& program_;
  const std::vector<int64_t>* loops_;
  trace::OperationText* marked_ = nullptr;  // collects indices; their places in the text are kMark
  std::vector<std::string> names_;          // by loop id
  std::string text_;
};

void Printer::name_loops(const std::vector<Node>& nodes) {
  for (const Node& node : nodes) {
    const Repeat* repeat = std::get_if<Repeat>(&node);
    if (repeat == nullptr) continue;
    if (repeat->loop >= 0) {
      names_.resize(std::max(names_.size(), static_cast<size_t>(repeat->loop) + 1));
      names_[repeat->loop] = repeat->variable;
    }
    name_loops(repeat->body);
  }
}

std::string Printer::loop_name(int loop) const {
  if (loop == kStepCounter) return "step";
  if (loop == kRoundCounter) return "round";
  const bool named = static_cast<size_t>(loop) < names_.size() && !names_[loop].empty();
  return named ? names_[loop] : fmt::format("loop{}", loop);
}

/// True when the loops that an index uses have values.
bool Printer::has_values(const Index& index) const {
  const auto has = [&](int loop) {
    return loop == kNoLoop || (loop >= 0 && static_cast<size_t>(loop) < loops_->size()) ||
           loops_->size() >= kNumCounters;
  };
  return loops_ != nullptr && has(index.loop) && has(index.other_loop);
}

std::string Printer::term_text(int loop, int64_t scale) const {
  if (scale == 1) return loop_name(loop);
  if (scale == -1) return fmt::format("-{}", loop_name(loop));
  return fmt::format("{}*{}", scale, loop_name(loop));
}

std::string Printer::index_text(const Index& index) const {
  if (index.is_constant()) return std::to_string(index.constant);
  if (marked_ != nullptr && mark_index(index)) return {kMark};
  if (has_values(index)) return std::to_string(evaluate(index, *loops_));
  std::string text;
  if (index.loop != kNoLoop && index.scale == -1 && index.constant != 0) {
    text = fmt::format("{}-{}", index.constant, loop_name(index.loop));
  } else {
    if (index.loop != kNoLoop) text = term_text(index.loop, index.scale);
    if (index.constant != 0) text += fmt::format("{:+}", index.constant);
  }
  if (index.other_loop != kNoLoop) {
    const std::string other = term_text(index.other_loop, index.other_scale);
    text += (text.empty() || other.front() == '-' ? "" : "+") + other;
  }
  return index.modulo == 0 ? text : fmt::format("({})%{}", text, index.modulo);
}

/// Where the values of `loop` will stand; nothing for a counter, and where the operation depends on
/// too many loops.
std::optional<int> Printer::place_of(int loop) const {
  if (loop == kNoLoop) return 0;  // with a scale of 0
  if (loop < 0) return std::nullopt;
  std::vector<int>& used = marked_->loops;
  const auto at = std::find(used.begin(), used.end(), loop);
  if (at == used.end()) {
    if (used.size() == trace::OperationText::kLoops) return std::nullopt;
    used.push_back(loop);
    return static_cast<int>(used.size()) - 1;
  }
  return static_cast<int>(at - used.begin());
}

bool Printer::mark_index(const Index& index) const {
  const std::optional<int> first = place_of(index.loop), other = place_of(index.other_loop);
  if (!first || !other) return false;
  marked_->indices.push_back({index.constant, *first, index.loop == kNoLoop ? 0 : index.scale,
                              *other, index.other_loop == kNoLoop ? 0 : index.other_scale,
                              index.modulo});
  return true;
}

trace::OperationText Printer::marked_text(const Op& op) {
  trace::OperationText result;
  marked_ = &result;
  const std::string text = call(op);
  marked_ = nullptr;
  result.pieces.clear();
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(kMark, begin);
    result.pieces.push_back(text.substr(begin, end - begin));
  }
  return result;
}

std::string Printer::operand_text(const Operand& operand) const {
  if (operand.array < 0 || operand.array >= static_cast<int>(program_.arrays.size())) {
    return fmt::format("array{}[{}]", operand.array, index_text(operand.index));
  }
  const ValueArray& array = program_.arrays[operand.array];
  const bool singleton = array.count == 1 && operand.index == Index{};
  return singleton ? array.name : fmt::format("{}[{}]", array.name, index_text(operand.index));
}

std::string Printer::list_text(const std::vector<Operand>& operands) const {
  std::string text;
  for (const Operand& operand : operands)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", operand_text(operand));
  return text;
}

std::string Printer::attribute_text(const AttributeInfo& info, const Attribute& attribute) const {
  const auto named = [&](const auto& value) { return fmt::format(" {} {}", info.name, value); };
  if (const Index* index = std::get_if<Index>(&attribute))
    return index->is_constant() && index->constant < 0 ? "" : named(index_text(*index));
  if (const IntegerRange* range = std::get_if<IntegerRange>(&attribute))
    return range->end > range->begin ? named(fmt::format("{}..{}", range->begin, range->end - 1))
                                     : "";
  if (const std::string* text = std::get_if<std::string>(&attribute)) return named(*text);
  if (const int64_t* integer = std::get_if<int64_t>(&attribute)) return named(*integer);
  return named(std::get<double>(attribute));
}

/// What a kernel works on, from its printed attributes: " block i segments 0..3"; what a transfer
/// is of and between whom, from all it has: " activation of micro-batch i to stage 1". An index
/// below 0 is none.
std::string Printer::subject(const Op& op) const {
  std::string text;
  if (op.kernel == nullptr) {
    for (const Attribute& attribute : op.attributes) {
      const std::string value = attribute_text({}, attribute);
      text += value.empty() ? "" : value.substr(1);  // behind the place of a name
    }
    return text;
  }
  const size_t count = std::min(op.attributes.size(), op.kernel->attributes.size());
  for (size_t i = 0; i < count; ++i)
    if (op.kernel->attributes[i].printed)
      text += attribute_text(op.kernel->attributes[i], op.attributes[i]);
  return text;
}

/// What an operation makes: "a, b = ", "a += ", "a <- "; where access differs, "a, +b, ~c = ".
std::string Printer::results(const Op& op) const {
  if (op.writes.empty()) return "";
  const Access first = op.writes.front().access;
  const bool alike = std::all_of(op.writes.begin(), op.writes.end(),
                                 [&](const Operand& operand) { return operand.access == first; });
  if (alike)
    return list_text(op.writes) + (first == Access::kAdd      ? " += "
                                   : first == Access::kUpdate ? " <- "
                                                              : " = ");
  std::string text;
  for (const Operand& operand : op.writes) {
    text += text.empty() ? "" : ", ";
    text += operand.access == Access::kAdd ? "+" : operand.access == Access::kUpdate ? "~" : "";
    text += operand_text(operand);
  }
  return text + " = ";
}

/// By its position in the group.
std::string Printer::peer(const Op& op) const {
  if (op.kind == OpKind::kSend) return " to " + index_text(op.peer);
  if (op.kind == OpKind::kShift && op.peer.constant > 0) return " skipping " + index_text(op.peer);
  const bool from = op.kind == OpKind::kReceive || op.kind == OpKind::kBroadcast;
  return from ? " from " + index_text(op.peer) : "";
}

std::string Printer::call(const Op& op) const {
  if (op.kind == OpKind::kFree) {
    const std::string reads = list_text(op.reads), writes = list_text(op.writes);
    return "free " + reads + (reads.empty() || writes.empty() ? "" : ", ") + writes;
  }
  std::string text = results(op);
  text += op_name(op) + subject(op);
  if (!op.reads.empty() || op.kernel != nullptr) text += fmt::format("({})", list_text(op.reads));
  if (op.kernel == nullptr && op.attributes.empty()) text += peer(op);
  if (op.codec != "none") text += " [" + op.codec + "]";
  return text;
}

/// The group of a transfer, unless the stream already says it.
std::string Printer::among(const Op& op) const {
  const bool known = op.group >= 0 && op.group < static_cast<int>(program_.groups.size());
  if (!is_communication(op.kind) || !known) return "";
  const std::string& name = program_.groups[op.group].name;
  const bool stream_known = op.stream >= 0 && op.stream < static_cast<int>(program_.streams.size());
  if (stream_known && program_.streams[op.stream].resource == name) return "";
  return fmt::format(" among {}", name);
}

std::string Printer::tail(const Op& op) const {
  std::string text = "on ";
  if (op.stream < 0 || op.stream >= static_cast<int>(program_.streams.size())) {
    text += op.stream == kCompute ? "compute" : fmt::format("stream{}", op.stream);
  } else if (op.stream == kCompute) {
    text += program_.streams[op.stream].resource;
  } else {
    text += fmt::format("{}.{}", program_.streams[op.stream].resource,
                        program_.streams[op.stream].lane);
  }
  text += among(op);
  if (!op.waits.empty()) text += "   waits " + list_text(op.waits);
  return text;
}

std::string Printer::op_text(const Op& op) const {
  if (op.kind == OpKind::kFree && op.waits.empty()) return call(op);
  return call(op) + " " + tail(op);
}

void Printer::add_line(size_t indent, const Op& op) {
  std::string line = std::string(indent, ' ') + call(op);
  if (op.kind != OpKind::kFree || !op.waits.empty()) {
    line.resize(std::max(line.size() + 2, kStreamColumn), ' ');
    line += tail(op);
  }
  text_ += line + "\n";
}

/// Writes the frees from `at` on as one line; returns how many there were.
size_t Printer::add_frees(const std::vector<Node>& nodes, size_t at, size_t indent) {
  std::string line = std::string(indent, ' ') + "free ";
  size_t end = at;
  for (; end < nodes.size(); ++end) {
    const Op* op = std::get_if<Op>(&nodes[end]);
    if (op == nullptr || op->kind != OpKind::kFree || !op->waits.empty()) break;
    line += (end == at ? "" : ", ") + call(*op).substr(std::string("free ").size());
  }
  if (end > at) text_ += line + "\n";
  return end - at;
}

void Printer::add_nodes(const std::vector<Node>& nodes, size_t indent) {
  for (size_t i = 0; i < nodes.size();) {
    if (const size_t frees = add_frees(nodes, i, indent); frees > 0) {
      i += frees;
      continue;
    }
    if (const Op* op = std::get_if<Op>(&nodes[i])) {
      add_line(indent, *op);
      ++i;
      continue;
    }
    const Repeat& repeat = std::get<Repeat>(nodes[i++]);
    const int64_t last = repeat.first + (repeat.count - 1) * repeat.step;
    std::string line =
        fmt::format("{}repeat {} in {}", std::string(indent, ' '), repeat.variable, repeat.first);
    if (repeat.step != 1 && repeat.step != -1)
      line += fmt::format(",{}", repeat.first + repeat.step);
    line += fmt::format("..{} ({} times)", last, repeat.count);
    for (size_t k = 0; k < repeat.carried.size(); ++k) {
      const int array = repeat.carried[k];
      const bool known = array >= 0 && array < static_cast<int>(program_.arrays.size());
      line += (k == 0 ? "   carried: " : ", ") + (known ? program_.arrays[array].name : "?");
    }
    text_ += line + "\n";
    add_nodes(repeat.body, indent + 2);
  }
}

/// Ranks of the class, runs of equal distance shortened: "0, 1, 4..12 by 4".
std::string Printer::members_text() const {
  const std::vector<int64_t>& members = program_.members;
  if (members.empty()) return fmt::format("every rank of {}", program_.ranks);
  std::string text = members.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < members.size();) {
    size_t end = i + 1;
    const int64_t step = end < members.size() ? members[end] - members[i] : 0;
    while (end < members.size() && members[end] - members[end - 1] == step) ++end;
    if (end - i < 3) end = i + 1;
    if (i > 0) text += ", ";
    text += std::to_string(members[i]);
    if (end - i >= 3) text += fmt::format("..{}", members[end - 1]);
    if (end - i >= 3 && step != 1) text += fmt::format(" by {}", step);
    i = end;
  }
  return text + fmt::format(" of {}", program_.ranks);
}

std::string lists_text(const MemberLists& lists) {
  constexpr size_t kMostShown = 4;
  std::string text;
  for (size_t k = 0; k < std::min(lists.lists().size(), kMostShown); ++k)
    text += fmt::format("{} {}", k == 0 ? ":" : " |", fmt::join(lists.lists()[k], " "));
  return text + (lists.lists().size() > kMostShown ? " | ..." : "");
}

std::string Printer::array_text(const ValueArray& array) const {
  std::string name =
      array.count == 1 ? array.name : fmt::format("{}[0..{}]", array.name, array.count - 1);
  std::string text =
      fmt::format("{:<24} {} {}", name, array.partition.elements, dtype_name(array.dtype));
  const bool of_group = array.group >= 0 && array.group < static_cast<int>(program_.groups.size());
  if (of_group && array.joined) {
    text += fmt::format(" in all, joined parts of {} of shares over {}", array.partition.grain,
                        program_.groups[array.group].name);
  } else if (of_group) {
    text += fmt::format(" in parts of {} over {}", array.partition.grain,
                        program_.groups[array.group].name);
  } else if (array.joined)
    text += fmt::format(" in all, joined parts of {}", array.partition.grain);
  return text + ", " + category_name(array.category);
}

void Printer::add_header() {
  text_ =
      fmt::format("program {}/{}   class: {}\n", program_.name, program_.step_kind, members_text());
  for (const Group& group : program_.groups) {
    text_ += fmt::format("  group {:<10} {} ranks", group.name, group.size);
    if (group.stride != 1) text_ += fmt::format(", {} apart", group.stride);
    if (!group.lists.empty()) text_ += lists_text(group.lists);
    text_ += "\n";
  }
  std::string streams;
  for (size_t s = 0; s < program_.streams.size(); ++s) {
    streams += s == 0
                   ? program_.streams[s].resource
                   : fmt::format(", {}.{}", program_.streams[s].resource, program_.streams[s].lane);
  }
  text_ += "  streams " + streams + "\n";
  for (const bool transient : {false, true}) {
    for (const ValueArray& array : program_.arrays) {
      if ((array.lifetime == Lifetime::kTransient) != transient) continue;
      text_ += fmt::format("  {:<10} {}\n", lifetime_name(array.lifetime), array_text(array));
    }
  }
}

}  // namespace

std::string print(const Program& program) {
  Printer printer(program, nullptr);
  printer.add_header();
  printer.add_nodes(program.body, 2);
  return printer.take();
}

std::string print_op(const Program& program, const Op& op, const std::vector<int64_t>* loops) {
  return Printer(program, loops).op_text(op);
}

trace::OperationText operation_text(const Program& program, const Op& op) {
  return Printer(program, nullptr).marked_text(op);
}

}  // namespace strait::program
