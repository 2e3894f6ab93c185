// How many threads the system gives this process, and starting one that it may refuse.
#pragma once

#include <cstdint>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "strait/base/errors.h"

namespace strait {

/// The narrowest of the system's limits, in threads, and its name as a user would change it.
struct ThreadLimit {
  int64_t threads = 0;
  std::string name;
};

/// Of processes per user, of the control group, of the system, of mapped regions, and of address
/// space with the stacks that threads get. What other processes take is not subtracted.
ThreadLimit thread_limit();

/// Starts a thread. UserError, saying what it is for and what helps, when the system gives none:
/// its limits of processes, of mapped regions or of address space are reached.
template <class Body>
std::thread start_thread(const std::string& what, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw UserError("the system refuses a thread for " + what + ": " + error.code().message() +
                    "; run fewer ranks, or raise the limits of processes (ulimit -u), of address "
                    "space (ulimit -v) or of mapped regions (vm.max_map_count)");
  }
}

}  // namespace strait
