#include "strait/verify/counters.h"

#include <algorithm>
#include <numeric>

#include "strait/program/indices.h"

namespace strait::program {

namespace {

void extend(int64_t& period, int64_t modulo) {
  if (period <= kMostPeriod) period = std::lcm(period, modulo);
}

/// Replaces one term of an index, when it is a counter's, by its value.
void fix_term(int& loop, int64_t& scale, int64_t& constant, const Counters& counters) {
  if (loop != kStepCounter && loop != kRoundCounter) return;
  constant += scale * (loop == kStepCounter ? counters.step : counters.round);
  loop = kNoLoop;
  scale = 0;
}

void fix(std::vector<Node>& nodes, const Counters& counters) {
  for (Node& node : nodes) {
    if (Repeat* repeat = std::get_if<Repeat>(&node)) {
      fix(repeat->body, counters);
      continue;
    }
    visit_indices(std::get<Op>(node), [&](Index& index) {
      fix_term(index.loop, index.scale, index.constant, counters);
      fix_term(index.other_loop, index.other_scale, index.constant, counters);
    });
  }
}

}  // namespace

CounterPeriod counter_period(const std::vector<Program>& classes) {
  CounterPeriod period;
  const auto add = [&](const Index& index) {
    for (const int loop : {index.loop, index.other_loop}) {
      if (index.modulo == 0) continue;
      if (loop == kStepCounter) extend(period.steps, index.modulo);
      if (loop == kRoundCounter) extend(period.rounds, index.modulo);
    }
  };
  for (const Program& program : classes)
    for_each_op(program.body, [&](const Op& op) { visit_indices(op, add); });
  return period;
}

std::vector<Program> at_counters(const std::vector<Program>& classes, const Counters& counters) {
  std::vector<Program> fixed = classes;
  for (Program& program : fixed) fix(program.body, counters);
  return fixed;
}

}  // namespace strait::program
