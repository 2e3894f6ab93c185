#include <omp.h>

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/kernel/normal.h"
#include "strait/kernel/parallel.h"
#include "strait/model/block.h"

namespace strait::model {
namespace {

/// Elements [begin, end) of `parameter`; `destination` points at element `begin`.
template <class T>
void fill(const ParameterShape& parameter, uint64_t seed, int64_t begin, int64_t end,
          T* destination) {
  if (parameter.initial != Initial::kNormal) {
    std::fill_n(destination, end - begin, parameter.initial == Initial::kOnes ? T{1} : T{0});
    return;
  }
  const uint64_t key = RandomStream(seed, parameter.name).key();
  kernel::normal<T>(
      {key, static_cast<uint64_t>(begin), end - begin, parameter.standard_deviation, destination});
}

template <class T>
void fill_range(const UnitShape& unit, uint64_t seed, int64_t begin, int64_t end, T* destination) {
  for (const ParameterShape& parameter : unit.parameters) {
    const int64_t first = std::max(begin, parameter.offset);
    const int64_t last = std::min(end, parameter.offset + parameter.elements());
    if (first >= last) continue;
    fill(parameter, seed, first - parameter.offset, last - parameter.offset,
         destination + (first - begin));
  }
}

template <class T>
void fill_runs(const UnitShape& unit, uint64_t seed, const ElementRuns& runs, T* destination) {
  kernel::parallel_ranges(
      num_elements(runs), 4096, omp_get_max_threads(), [&](int64_t first, int64_t last) {
        for_each_run(slice(runs, first, last), [&](int64_t at, int64_t packed, int64_t length) {
          fill_range(unit, seed, at, at + length, destination + first + packed);
        });
      });
}

}  // namespace

void initialize(const UnitShape& unit, uint64_t seed, Dtype dtype, const ElementRuns& runs,
                void* destination) {
  for (const ElementRun& run : runs)
    ensure(0 <= run.begin && run.end() <= unit.elements, "initialize: a run outside the unit");
  if (dtype == Dtype::kFloat32) {
    fill_runs(unit, seed, runs, static_cast<float*>(destination));
  } else if (dtype == Dtype::kFloat64) {
    fill_runs(unit, seed, runs, static_cast<double*>(destination));
  } else {
    throw InternalError("initialize: fp32 or fp64");
  }
}

}  // namespace strait::model
