// The collectives of a communicator against plain loops, for whatever backend it belongs to.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "strait/comm/communicator.h"
#include "tests/comm/thread_ranks.h"

namespace strait::comm {

using collective::Algorithm;

template <class T>
constexpr Dtype dtype_of() {
  if constexpr (std::is_same_v<T, uint8_t>) return Dtype::kByte;
  if constexpr (std::is_same_v<T, int32_t>) return Dtype::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return Dtype::kInt64;
  if constexpr (std::is_same_v<T, float>) return Dtype::kFloat32;
  return Dtype::kFloat64;
}

/// Fractions in floating point, so that a wrong order of sums shows; wraps in u8.
template <class T>
T value(int64_t rank, int64_t index) {
  const int64_t number = (rank * 7919 + index * 104729) % 251 + 1;
  if constexpr (std::is_floating_point_v<T>) return T(1) / static_cast<T>(number);
  return static_cast<T>(number);
}

template <class T>
std::vector<T> values(int64_t rank, int64_t count) {
  std::vector<T> result(count);
  for (int64_t i = 0; i < count; ++i) result[i] = value<T>(rank, i);
  return result;
}

/// ((x0 + x1) + ...) from `first` on, around the group.
template <class T>
T ordered_sum(int64_t ranks, int64_t index, int64_t first) {
  T sum = value<T>(first % ranks, index);
  for (int64_t k = 1; k < ranks; ++k)
    sum = static_cast<T>(sum + value<T>((first + k) % ranks, index));
  return sum;
}

inline std::vector<std::vector<int64_t>> count_grid(int64_t parts) {
  std::vector<std::vector<int64_t>> grid;
  for (const int64_t each : {0, 1, 7, 9000}) grid.push_back(std::vector<int64_t>(parts, each));
  std::vector<int64_t> uneven(parts);
  for (int64_t part = 0; part < parts; ++part) uneven[part] = (part * 5 + 3) % 4 * 33;
  grid.push_back(uneven);
  return grid;
}

struct Case {
  int64_t ranks;
  Algorithm algorithm;
  bool in_place;
  bool accumulate;
};

inline std::string case_name(const ::testing::TestParamInfo<Case>& test) {
  return std::string(collective::algorithm_name(test.param.algorithm)) +
         std::to_string(test.param.ranks) + (test.param.in_place ? "InPlace" : "") +
         (test.param.accumulate ? "Accumulate" : "");
}

inline std::vector<Case> cases() {
  std::vector<Case> result;
  for (const int64_t ranks : {1, 2, 3, 4, 8})
    for (const Algorithm algorithm :
         {Algorithm::kDirect, Algorithm::kRing, Algorithm::kRecursive, Algorithm::kHierarchical})
      for (const bool in_place : {false, true})
        for (const bool accumulate : {false, true})
          result.push_back({ranks, algorithm, in_place, accumulate});
  return result;
}

/// Runs the operations of one case and checks every element that comes back.
struct CollectiveGrid {
  Case param;

  /// What a destination holds before the call.
  template <class T>
  static std::vector<T> prior(int64_t count) {
    return std::vector<T>(count, T(3));
  }

  template <class T>
  Call call(Operation operation, const std::vector<int64_t>& counts) const {
    Call call;
    call.operation = operation;
    call.dtype = dtype_of<T>();
    call.counts = counts;
    call.accumulate = param.accumulate;
    call.deadline_seconds = 30.0;
    return call;
  }

  template <class T>
  T expected(T before, T result) const {
    return param.accumulate ? static_cast<T>(before + result) : result;
  }

  /// Recursive halving: the widest distance is added first.
  template <class T>
  T halved_sum(int64_t begin, int64_t stride, int64_t index) const {
    if (stride == param.ranks) return value<T>(begin, index);
    return static_cast<T>(halved_sum<T>(begin, 2 * stride, index) +
                          halved_sum<T>(begin + stride, 2 * stride, index));
  }

  /// The sum of an element of `part` in the documented order of the algorithm on test_cluster's
  /// pairs.
  template <class T>
  T reference_sum(int64_t part, int64_t index) const {
    const int64_t n = param.ranks;
    if (param.algorithm == Algorithm::kRing) return ordered_sum<T>(n, index, part + 1);
    if (param.algorithm == Algorithm::kRecursive && n % 2 == 0) return halved_sum<T>(0, 1, index);
    if (param.algorithm == Algorithm::kHierarchical && n % 2 == 0) {
      T sum = static_cast<T>(value<T>(0, index) + value<T>(1, index));
      for (int64_t member = 2; member < n; member += 2)
        sum = static_cast<T>(sum +
                             static_cast<T>(value<T>(member, index) + value<T>(member + 1, index)));
      return sum;
    }
    return ordered_sum<T>(n, index, 0);
  }

  template <class T>
  void all_gather(Communicator& group, const std::vector<int64_t>& counts) const {
    const int64_t me = group.position();
    const auto offsets = offsets_of(counts);
    std::vector<T> own = values<T>(me, counts[me]), whole = prior<T>(offsets.back());
    Call gather = call<T>(Operation::kAllGather, counts);
    gather.source = own.data();
    gather.destination = whole.data();
    if (param.in_place) {
      if (param.accumulate) return;  // has no in-place form; refused in errors_test
      std::copy(own.begin(), own.end(), whole.begin() + offsets[me]);
      gather.source = whole.data() + offsets[me];
    }
    group.start(gather).wait();
    for (int64_t part = 0; part < group.size(); ++part)
      for (int64_t i = 0; i < counts[part]; ++i)
        ASSERT_EQ(whole[offsets[part] + i], expected<T>(T(3), value<T>(part, i)))
            << "part " << part;
  }

  template <class T>
  void reduce_scatter(Communicator& group, const std::vector<int64_t>& counts) const {
    const int64_t me = group.position();
    const auto offsets = offsets_of(counts);
    std::vector<T> whole = values<T>(me, offsets.back()), own = prior<T>(counts[me]);
    Call reduce = call<T>(Operation::kReduceScatter, counts);
    reduce.source = whole.data();
    reduce.destination = param.in_place ? whole.data() + offsets[me] : own.data();
    group.start(reduce).wait();
    const T* result = static_cast<const T*>(reduce.destination);
    for (int64_t i = 0; i < counts[me]; ++i) {
      const int64_t index = offsets[me] + i;
      const T before = param.in_place ? value<T>(me, index) : T(3);
      ASSERT_EQ(result[i], expected<T>(before, reference_sum<T>(me, index)));
    }
  }

  template <class T>
  void all_reduce(Communicator& group, const std::vector<int64_t>& counts) const {
    const int64_t me = group.position();
    const auto offsets = offsets_of(counts);
    std::vector<T> mine = values<T>(me, offsets.back()), result = prior<T>(offsets.back());
    Call reduce = call<T>(Operation::kAllReduce, counts);
    reduce.source = mine.data();
    reduce.destination = param.in_place ? mine.data() : result.data();
    group.start(reduce).wait();
    const T* sums = static_cast<const T*>(reduce.destination);
    for (int64_t part = 0; part < group.size(); ++part)
      for (int64_t index = offsets[part]; index < offsets[part + 1]; ++index) {
        const T before = param.in_place ? value<T>(me, index) : T(3);
        ASSERT_EQ(sums[index], expected<T>(before, reference_sum<T>(part, index)));
      }
  }

  /// All counts of the grid.
  template <class T>
  void run(Communicator& group) const {
    for (const auto& counts : count_grid(group.size())) {
      all_gather<T>(group, counts);
      reduce_scatter<T>(group, counts);
      all_reduce<T>(group, counts);
    }
  }
};

}  // namespace strait::comm
