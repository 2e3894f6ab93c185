// Whether the system has threads for the ranks of a run, asked before any of them starts.
#pragma once

#include <cstdint>

#include "strait/threads/thread_limit.h"

namespace strait {

/// UserError naming the limit and the nearest number of ranks when the system gives fewer threads
/// than `ranks` thread ranks take. One rank runs on any system.
void require_threads(int64_t ranks, const ThreadLimit& limit);

}  // namespace strait
