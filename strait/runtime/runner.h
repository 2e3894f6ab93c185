// Runs the programs of a set on one rank, as its table says.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strait/program/program_set.h"
#include "strait/runtime/interpreter.h"

namespace strait::runtime {

/// Not thread-safe; one per rank. Programs are bound when they first run, or by prepare().
class Runner {
 public:
  /// `programs` and what the site names outlive it.
  Runner(const program::ProgramSet& programs, const Site& site)
      : programs_(&programs), site_(site) {}

  /// From the next turn on runs another set with the same kinds and rules, whose resident values
  /// are those of the one before. No transfer is under way, and the ledger is drained.
  void replace(const program::ProgramSet& programs);

  /// Binds the programs of a kind, so that its resident values exist.
  Interpreter& prepare(const std::string& kind);
  /// Runs what the table says for a purpose in the turn of `step`; times are summed up. `named`:
  /// what messages and records call it, where that is not `step`.
  RunTimes run(const std::string& purpose, int64_t step,
               std::optional<int64_t> named = std::nullopt);
  /// Adds what the communicators counted since the last call, and forgets it there.
  void drain_ledger(Ledger& ledger);

 private:
  double read(const program::AgreedScalar& scalar) const;

  const program::ProgramSet* programs_;
  Site site_;
  std::map<std::string, std::unique_ptr<Interpreter>> interpreters_;  // by kind
  std::string last_;                                                  // kind that ran last
  std::vector<const std::string*> kinds_;                             // scratch
};

}  // namespace strait::runtime
