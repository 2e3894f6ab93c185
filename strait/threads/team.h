// Threads that run the parts of one loop together, again and again: what kernels are made parallel
// with.
#pragma once

#include <type_traits>

namespace strait {

/// One part of the work; `context` is the caller's.
using TeamPart = void (*)(const void* context, int index, int members);

/// Calls part(context, index, members) for every index in [0, members), index 0 on the calling
/// thread and each other one on a thread of its own. Returns when all are done. The threads belong
/// to the calling thread, start when first needed (on the cores that the caller may use then) and
/// end with it. Between two calls they spin for some microseconds, then sleep: a thread that waits
/// takes no core from one that computes, whoever's it is. Inside a part, and when the system
/// refuses a thread, there are fewer members than `threads`, at least one. `part` must not throw.
/// Cost: a microsecond or two while the threads spin, a wake-up of the system after that.
void run_team(int threads, TeamPart part, const void* context);

/// The same for function(index, members).
template <class Function>
void run_team(int threads, const Function& function) {
  static_assert(std::is_invocable_v<const Function&, int, int>);
  const auto part = [](const void* context, int index, int members) {
    (*static_cast<const Function*>(context))(index, members);
  };
  run_team(threads, part, &function);
}

}  // namespace strait
