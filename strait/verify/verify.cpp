#include "strait/verify/verify.h"

#include "strait/base/errors.h"
#include "strait/verify/findings.h"

namespace strait::program {

std::vector<Problem> verify(const std::vector<Program>& classes) {
  if (classes.empty()) return {{"malformed", "", "", "there is no program"}};
  Findings findings(classes);
  const int64_t count = static_cast<int64_t>(classes.size());
  check_classes(findings);
  if (findings.empty()) check_groups(findings);
  if (!findings.empty()) return findings.take();
  for (int64_t c = 0; c < count; ++c) check_structure(c, findings);
  if (!findings.empty()) return findings.take();
  for (int64_t c = 0; c < count; ++c) check_values(c, findings);
  check_messages(findings);
  if (findings.empty()) check_cycles(findings);
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
