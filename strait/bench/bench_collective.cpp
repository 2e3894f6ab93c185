#include "strait/bench/bench_collective.h"

#include <algorithm>
#include <cmath>

#include "strait/measure/copy.h"

namespace strait::measure {
namespace {

/// Calls in a row inside one timed run: short operations would otherwise time how ranks are
/// started.
int64_t repeats_for(int64_t bytes) { return std::clamp<int64_t>((8 << 20) / bytes, 1, 500); }

}  // namespace

BenchRow bench_collective(const CollectiveCase& collective, const TimingOptions& options) {
  RankTeam team(collective.ranks, 1);
  CollectiveRun run(team, collective);
  const int64_t repeats = repeats_for(run.vector_bytes());
  BenchWork work;
  work.bench_case = Json::object({{"operation", collective.operation},
                                  {"backend", collective.backend},
                                  {"ranks", collective.ranks},
                                  {"bytes", run.vector_bytes()},
                                  {"dtype", dtype_name(collective.dtype)},
                                  {"codec", collective.codec}});
  work.verify = [&] { return run.check(); };
  work.ours = {"strait", "", [&] { return run.run(repeats); }, "", repeats};
  work.work = static_cast<double>(run.vector_bytes());
  work.rate_unit = "bytes_per_second";
  if (collective.ranks == 1) return bench_row(work, options);
  const double per_rank = run.moved_bytes() / (2.0 * static_cast<double>(collective.ranks));
  CopyBuffers copies(team, std::max<int64_t>(1, std::llround(per_rank)));
  work.bound = Contender{"memory-copy", "", [&] { return copies.best_copy(repeats); }, "", repeats};
  return bench_row(work, options);
}

}  // namespace strait::measure
