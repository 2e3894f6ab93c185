#include "strait/verify/findings.h"

#include <fmt/format.h>

namespace strait::program {

namespace {

/// Names of the loops around `op`, outermost first; false when it is not in `nodes`.
bool find_loops(const std::vector<Node>& nodes, const Op* op, std::vector<std::string>& names) {
  for (const Node& node : nodes) {
    if (std::get_if<Op>(&node) == op) return true;
    const Repeat* repeat = std::get_if<Repeat>(&node);
    if (repeat == nullptr) continue;
    names.push_back(repeat->variable);
    if (find_loops(repeat->body, op, names)) return true;
    names.pop_back();
  }
  return false;
}

}  // namespace

std::string Findings::place(int64_t rank_class, const Op* op) const {
  const Program& program = classes_[rank_class];
  std::string text =
      fmt::format("{}/{}, rank class {}", program.name, program.step_kind, rank_class);
  std::vector<std::string> names;
  if (op == nullptr || !find_loops(program.body, op, names)) return text;
  for (size_t i = 0; i < names.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? ", loop " : ".", names[i]);
  return text;
}

std::string Findings::quote(int64_t rank_class, const Op& op,
                            const std::vector<int64_t>* loops) const {
  std::string text = print_op(classes_[rank_class], op, loops);
  if (op.kind != OpKind::kFree) text.resize(std::min(text.size(), text.rfind(" on ")));
  return fmt::format("`{}`", text);
}

std::string Findings::value_name(int64_t rank_class, int array, int64_t index) const {
  const ValueArray& values = classes_[rank_class].arrays[array];
  return values.count == 1 ? values.name : fmt::format("{}[{}]", values.name, index);
}

void Findings::add(const std::string& kind, const Site& site, const std::string& sentence,
                   const std::string& other) {
  if (full() || !seen_.emplace(kind, site.rank_class, site.op, site.array).second) return;
  Problem problem;
  problem.kind = kind;
  const std::string where = place(site.rank_class, site.op);
  if (site.op != nullptr)
    problem.op = where + ": " + print_op(classes_[site.rank_class], *site.op, site.loops);
  problem.other = other;
  problem.message = where + ": " + sentence;
  problems_.push_back(std::move(problem));
}

std::string instance_text(const Program& program, int64_t instance) {
  std::string text;
  int64_t at = 0;
  for_each_instance(program, [&](const Op& op, const std::vector<int64_t>& loops) {
    if (at++ == instance) text = print_op(program, op, &loops);
  });
  return text;
}

}  // namespace strait::program
