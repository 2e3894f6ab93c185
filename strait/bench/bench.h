// Benchmarks as rows of one report: every row verifies its result, then times it beside its bound
// and its peers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/base/json.h"
#include "strait/measure/gemm.h"
#include "strait/measure/timing.h"
#include "strait/report/statistics.h"

namespace strait::measure {

/// A yardstick timed in the same run, and what it is ("memory-copy", "large-gemm", ...). What we
/// have passed is also reported as a reference, because it bounds nothing.
struct BenchBound {
  std::string name;
  double seconds = 0.0;
};

struct BenchPeer {
  std::string name, version;
  std::optional<report::Statistics> seconds;  // empty: `missing` says why
  std::string missing;
};

/// One case. A row whose verification failed has a `failure` and no times.
struct BenchRow {
  Json bench_case = Json::object();  // the keys of INTERFACE for its subject
  std::string failure;
  std::optional<report::Statistics> seconds;
  double work = 0.0;      // per run, in units of rate_unit times seconds; rate = work / median
  std::string rate_unit;  // "flops_per_second", "bytes_per_second", "tokens_per_second"
  std::optional<BenchBound> bound;
  std::vector<BenchPeer> peers;
  Json breakdown;  // of a step (breakdown.h), or null
  /// bound / median; NaN without one.
  double share() const;
};

struct BenchReport {
  std::string subject;  // gemm, step, collective, ...
  std::vector<BenchRow> rows;
  /// At least one row, and none failed.
  bool verified() const;
};

/// [{case, seconds, rate, rate_unit, bound, bound_share, reference, reference_share, peers,
/// failure}]; bound_share = bound / median, above 1 where we were faster: then the bound is also
/// the reference, which is null elsewhere. Without a yardstick all four are null. speedup = median
/// of the peer / ours.
Json bench_rows_to_json(const std::vector<BenchRow>& rows);
/// {subject, verified, rows}, to be merged into what every command writes.
Json bench_report_to_json(const BenchReport& report);

/// Verifies, then times `ours`, the bounds and the peers together and fills a row. `verify` returns
/// "" or what is wrong; on a failure nothing is timed. A bound contender's median becomes the
/// bound.
struct BenchWork {
  Json bench_case = Json::object();
  std::function<std::string()> verify;
  Contender ours;
  double work = 0.0;
  std::string rate_unit;
  std::optional<Contender> bound;
  double bound_factor = 1.0;  // bound seconds = median of the bound contender * factor
  std::vector<Contender> peers;
};
BenchRow bench_row(const BenchWork& work, const TimingOptions& options);

/// A matrix product as the model runs it. Bound "large-gemm": the rate of a 1024 x 1024 x 1024 one,
/// same dtype and threads, by the faster of Strait's kernel and the BLAS. Peer "blas".
/// Strait's by `products`.
BenchRow bench_gemm(const GemmShape& shape, Dtype dtype, int64_t threads,
                    const TimingOptions& options = {},
                    kernel::NarrowProducts products = kernel::NarrowProducts::kAutomatic);

}  // namespace strait::measure
