// Collectives against the time that copying the same bytes takes.
#pragma once

#include "strait/bench/bench.h"
#include "strait/measure/collective_run.h"

namespace strait::measure {

/// The row of `bench collective`. Bound "memory-copy": CollectiveRun::moved_bytes by the faster of
/// memcpy and a loop of streaming stores, on the same number of threads, interleaved in the same
/// run. rate = bytes of the vector per second. A world of one moves nothing and has no bound.
/// Errors as CollectiveRun.
BenchRow bench_collective(const CollectiveCase& collective, const TimingOptions& options = {});

}  // namespace strait::measure
