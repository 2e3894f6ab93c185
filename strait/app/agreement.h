// Processes that go on together or not at all, before their world exists: what one of them throws,
// all learn.
#pragma once

#include <functional>
#include <string>

#include "strait/comm/mpi/mpi_world.h"

namespace strait::app {

/// Rank 0 throws what went wrong first, by rank; the others leave without a word, with its exit
/// code, once rank 0 has had time to tell. Every member function is collective.
class Agreement {
 public:
  explicit Agreement(comm::MpiSession& session) : session_(session) {}

  /// Runs `action` on every rank.
  void all(const std::function<void()>& action);
  /// Inside all(): runs `action` on rank 0 and returns its text on all ranks.
  std::string on_lead(const std::function<std::string()>& action);

 private:
  std::string meet(const std::string& text);

  comm::MpiSession& session_;
};

}  // namespace strait::app
