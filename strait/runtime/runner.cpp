#include "strait/runtime/runner.h"

#include <vector>

namespace strait::runtime {

void Runner::replace(const program::ProgramSet& programs) {
  interpreters_.clear();
  programs_ = &programs;
}

Interpreter& Runner::prepare(const std::string& kind) {
  std::unique_ptr<Interpreter>& interpreter = interpreters_[kind];
  if (!interpreter)
    interpreter =
        std::make_unique<Interpreter>(programs_->program(kind, site_.state.rank()), site_);
  return *interpreter;
}

double Runner::read(const program::AgreedScalar& scalar) const {
  std::vector<double> values(static_cast<size_t>(scalar.element) + 1);
  site_.state.read(scalar.array, values.data(),
                   static_cast<int64_t>(values.size() * sizeof(double)));
  return values.back();
}

RunTimes Runner::run(const std::string& purpose, int64_t step, std::optional<int64_t> named) {
  const auto read_scalar = [this](const program::AgreedScalar& scalar) { return read(scalar); };
  programs_->next(purpose, {last_, step}, read_scalar, kinds_);
  RunTimes total;
  for (const std::string* kind : kinds_) {
    total += prepare(*kind).run(step, Waiting::kAsWritten, named);
    last_ = *kind;
  }
  return total;
}

void Runner::drain_ledger(Ledger& ledger) {
  for (auto& [kind, interpreter] : interpreters_) interpreter->drain_ledger(ledger);
}

}  // namespace strait::runtime
