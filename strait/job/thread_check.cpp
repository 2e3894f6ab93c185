#include "strait/job/thread_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/base/errors.h"

namespace strait {
namespace {

/// The rank, its transfers on up to three streams, and its saves.
constexpr int64_t kThreadsPerRank = 5;

}  // namespace

void require_threads(int64_t ranks, const ThreadLimit& limit) {
  const int64_t most = std::max<int64_t>(1, limit.threads / kThreadsPerRank);
  if (ranks <= most) return;
  ErrorPlace place;
  place.key = "--ranks";
  throw UserError(fmt::format("{} thread ranks take {} threads, and the limit of {} allows {}; the "
                              "nearest number of ranks is {}",
                              ranks, ranks * kThreadsPerRank, limit.name, limit.threads, most),
                  place);
}

}  // namespace strait
