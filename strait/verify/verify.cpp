#include "strait/verify/verify.h"

#include <fmt/format.h>

#include "strait/base/errors.h"
#include "strait/verify/counters.h"
#include "strait/verify/findings.h"

namespace strait::program {

namespace {

/// What following the programs shows: they use no counter.
std::vector<Problem> follow(const std::vector<Program>& classes) {
  Findings findings(classes);
  for (size_t c = 0; c < classes.size(); ++c) check_values(static_cast<int64_t>(c), findings);
  check_messages(findings);
  if (findings.empty()) check_cycles(findings);
  return findings.take();
}

/// Stops at the first values of the counters under which something is wrong, and names them.
std::vector<Problem> follow_counters(const std::vector<Program>& classes,
                                     const CounterPeriod& period) {
  for (int64_t step = 0; step < period.steps; ++step) {
    for (int64_t round = 0; round < period.rounds; ++round) {
      std::vector<Problem> problems = follow(at_counters(classes, {step, round}));
      for (Problem& problem : problems)
        problem.message += fmt::format(" (in step {} of round {})", step, round);
      if (!problems.empty()) return problems;
    }
  }
  return {};
}

}  // namespace

std::vector<Problem> verify(const std::vector<Program>& classes) {
  if (classes.empty()) return {{"malformed", "", "", "there is no program"}};
  Findings findings(classes);
  const int64_t count = static_cast<int64_t>(classes.size());
  check_classes(findings);
  if (findings.empty()) check_groups(findings);
  if (!findings.empty()) return findings.take();
  for (int64_t c = 0; c < count; ++c) check_structure(c, findings);
  if (!findings.empty()) return findings.take();
  const CounterPeriod period = counter_period(classes);
  if (period == CounterPeriod{}) return follow(classes);
  if (period.steps <= kMostPeriod && period.rounds <= kMostPeriod / period.steps)
    return follow_counters(classes, period);
  findings.add("malformed", {0},
               fmt::format("its indices repeat after more than {} steps and rounds", kMostPeriod));
  return findings.take();
}

void verify_or_throw(const std::vector<Program>& classes) { throw_first(verify(classes)); }

void throw_first(const std::vector<Problem>& problems) {
  if (problems.empty()) return;
  ErrorPlace place;
  place.operation = problems[0].op;
  throw InternalError(problems[0].message, place);
}

}  // namespace strait::program
