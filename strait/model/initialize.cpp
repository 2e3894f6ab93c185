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
  kernel::parallel_ranges(
      end - begin, 4096, omp_get_max_threads(), [&](int64_t first, int64_t last) {
        kernel::normal<T>({key, static_cast<uint64_t>(begin + first), last - first,
                           parameter.standard_deviation, destination + first});
      });
}

template <class T>
void initialize_range(const UnitShape& unit, uint64_t seed, int64_t begin, int64_t end,
                      T* destination) {
  for (const ParameterShape& parameter : unit.parameters) {
    const int64_t first = std::max(begin, parameter.offset);
    const int64_t last = std::min(end, parameter.offset + parameter.elements());
    if (first >= last) continue;
    fill(parameter, seed, first - parameter.offset, last - parameter.offset,
         destination + (first - begin));
  }
}

}  // namespace

void initialize(const UnitShape& unit, uint64_t seed, Dtype dtype, int64_t begin, int64_t end,
                void* destination) {
  ensure(0 <= begin && begin <= end && end <= unit.elements, "initialize: range outside the unit");
  if (dtype == Dtype::kFloat32) {
    initialize_range(unit, seed, begin, end, static_cast<float*>(destination));
  } else if (dtype == Dtype::kFloat64) {
    initialize_range(unit, seed, begin, end, static_cast<double*>(destination));
  } else {
    throw InternalError("initialize: fp32 or fp64");
  }
}

}  // namespace strait::model
