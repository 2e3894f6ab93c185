// How many threads the system gives this process.
#pragma once

#include <cstdint>
#include <string>

namespace strait {

/// The narrowest of the system's limits, in threads, and its name as a user would change it.
struct ThreadLimit {
  int64_t threads = 0;
  std::string name;
};

/// Of processes per user, of the control group, of the system, of mapped regions, and of address
/// space with the stacks that threads get. What other processes take is not subtracted.
ThreadLimit thread_limit();

}  // namespace strait
