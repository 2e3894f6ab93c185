// Every operation of the threads backend against a plain loop: worlds x counts x dtypes x in place
// x accumulate x algorithm, on real threads.
#include <gtest/gtest.h>

#include <cstring>
#include <tuple>

#include "tests/comm/thread_ranks.h"

namespace strait::comm {
namespace {

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

std::vector<std::vector<int64_t>> count_grid(int64_t parts) {
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

std::string case_name(const ::testing::TestParamInfo<Case>& test) {
  return std::string(collective::algorithm_name(test.param.algorithm)) +
         std::to_string(test.param.ranks) + (test.param.in_place ? "InPlace" : "") +
         (test.param.accumulate ? "Accumulate" : "");
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const int64_t ranks : {1, 2, 3, 4, 8})
    for (const Algorithm algorithm :
         {Algorithm::kDirect, Algorithm::kRing, Algorithm::kRecursive, Algorithm::kHierarchical})
      for (const bool in_place : {false, true})
        for (const bool accumulate : {false, true})
          result.push_back({ranks, algorithm, in_place, accumulate});
  return result;
}

class Collectives : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<ThreadWorlds> make_worlds() const {
    ThreadWorldOptions options;
    options.algorithm = GetParam().algorithm;
    return make_thread_worlds(GetParam().ranks, test_cluster(GetParam().ranks), options);
  }

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
    call.accumulate = GetParam().accumulate;
    call.deadline_seconds = 30.0;
    return call;
  }

  template <class T>
  T expected(T before, T result) const {
    return GetParam().accumulate ? static_cast<T>(before + result) : result;
  }

  /// Recursive halving: the widest distance is added first.
  template <class T>
  T halved_sum(int64_t begin, int64_t stride, int64_t index) const {
    if (stride == GetParam().ranks) return value<T>(begin, index);
    return static_cast<T>(halved_sum<T>(begin, 2 * stride, index) +
                          halved_sum<T>(begin + stride, 2 * stride, index));
  }

  /// The sum of an element of `part` in the documented order of the algorithm on test_cluster's pairs.
  template <class T>
  T reference_sum(int64_t part, int64_t index) const {
    const int64_t n = GetParam().ranks;
    if (GetParam().algorithm == Algorithm::kRing) return ordered_sum<T>(n, index, part + 1);
    if (GetParam().algorithm == Algorithm::kRecursive && n % 2 == 0)
      return halved_sum<T>(0, 1, index);
    if (GetParam().algorithm == Algorithm::kHierarchical && n % 2 == 0) {
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
    if (GetParam().in_place) {
      if (GetParam().accumulate) return;  // has no in-place form; refused in errors_test
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
    reduce.destination = GetParam().in_place ? whole.data() + offsets[me] : own.data();
    group.start(reduce).wait();
    const T* result = static_cast<const T*>(reduce.destination);
    for (int64_t i = 0; i < counts[me]; ++i) {
      const int64_t index = offsets[me] + i;
      const T before = GetParam().in_place ? value<T>(me, index) : T(3);
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
    reduce.destination = GetParam().in_place ? mine.data() : result.data();
    group.start(reduce).wait();
    const T* sums = static_cast<const T*>(reduce.destination);
    for (int64_t part = 0; part < group.size(); ++part)
      for (int64_t index = offsets[part]; index < offsets[part + 1]; ++index) {
        const T before = GetParam().in_place ? value<T>(me, index) : T(3);
        ASSERT_EQ(sums[index], expected<T>(before, reference_sum<T>(part, index)));
      }
  }

  template <class T>
  void run_grid() const {
    const auto worlds = make_worlds();
    on_all_ranks(*worlds, [&](World&, Communicator& group) {
      for (const auto& counts : count_grid(group.size())) {
        all_gather<T>(group, counts);
        reduce_scatter<T>(group, counts);
        all_reduce<T>(group, counts);
      }
    });
  }
};

TEST_P(Collectives, OfFloat32) { run_grid<float>(); }
TEST_P(Collectives, OfFloat64) { run_grid<double>(); }
TEST_P(Collectives, OfInt32) { run_grid<int32_t>(); }
TEST_P(Collectives, OfInt64) { run_grid<int64_t>(); }
TEST_P(Collectives, OfBytes) { run_grid<uint8_t>(); }

INSTANTIATE_TEST_SUITE_P(Grid, Collectives, ::testing::ValuesIn(cases()), case_name);

class Worlds : public ::testing::TestWithParam<int64_t> {
 protected:
  std::unique_ptr<ThreadWorlds> worlds_ = make_thread_worlds(GetParam(), test_cluster(GetParam()));
};

TEST_P(Worlds, AllToAllDeliversUnevenParts) {
  const int64_t n = GetParam();
  const auto count = [](int64_t from, int64_t to) { return (from * 5 + to * 3) % 4 * 11; };
  for (const bool accumulate : {false, true})
    on_all_ranks(*worlds_, [&](World&, Communicator& group) {
      const int64_t me = group.position();
      Call call;
      call.operation = Operation::kAllToAll;
      call.dtype = Dtype::kInt64;
      call.accumulate = accumulate;
      std::vector<int64_t> sent, expected;
      for (int64_t peer = 0; peer < n; ++peer) {
        call.counts.push_back(count(me, peer));
        call.receive_counts.push_back(count(peer, me));
        for (int64_t i = 0; i < count(me, peer); ++i) sent.push_back(me * 10000 + peer * 100 + i);
        for (int64_t i = 0; i < count(peer, me); ++i)
          expected.push_back(peer * 10000 + me * 100 + i + (accumulate ? 5 : 0));
      }
      std::vector<int64_t> received(expected.size(), 5);
      call.source = sent.data();
      call.destination = received.data();
      group.start(call).wait();
      EXPECT_EQ(received, expected);
    });
}

TEST_P(Worlds, BroadcastFromEveryRoot) {
  for (int64_t root = 0; root < GetParam(); ++root)
    on_all_ranks(*worlds_, [&](World&, Communicator& group) {
      for (const int64_t count : {0, 1, 4099}) {
        const std::vector<double> source = values<double>(root, count);
        std::vector<double> destination(count, -1.0);
        Call call;
        call.operation = Operation::kBroadcast;
        call.dtype = Dtype::kFloat64;
        call.counts = {count};
        call.peer = root;
        call.source = group.position() == root ? source.data() : nullptr;
        call.destination = destination.data();
        if (group.position() == root && count == 1)
          call.destination = nullptr;  // a root that needs no copy
        group.start(call).wait();
        if (call.destination) {
          EXPECT_EQ(destination, source);
        }
      }
    });
}

TEST_P(Worlds, HalfTypesMoveAsTheyAre) {
  on_all_ranks(*worlds_, [&](World&, Communicator& group) {
    const std::vector<uint16_t> own(3, static_cast<uint16_t>(0x3f80 + group.position()));
    std::vector<uint16_t> whole(3 * group.size(), 0);
    for (const Dtype dtype : {Dtype::kBfloat16, Dtype::kFloat16}) {
      Call call;
      call.operation = Operation::kAllGather;
      call.dtype = dtype;
      call.counts.assign(group.size(), 3);
      call.source = own.data();
      call.destination = whole.data();
      group.start(call).wait();
      for (int64_t i = 0; i < 3 * group.size(); ++i) EXPECT_EQ(whole[i], 0x3f80 + i / 3);
    }
  });
}

TEST_P(Worlds, AllReduceOfOneCountIsSplitEvenly) {
  on_all_ranks(*worlds_, [&](World&, Communicator& group) {
    std::vector<double> mine = values<double>(group.position(), 1001);
    Call call;
    call.operation = Operation::kAllReduce;
    call.dtype = Dtype::kFloat64;
    call.counts = {1001};
    call.source = mine.data();
    call.destination = mine.data();
    group.start(call).wait();
    // The algorithm is the backend's choice here: sums of at most 8 terms in any order differ by 7 roundings.
    for (int64_t i = 0; i < 1001; ++i) {
      const double sum = ordered_sum<double>(group.size(), i, 0);
      ASSERT_NEAR(mine[i], sum, 7 * sum * 0x1p-53);
    }
  });
}

TEST_P(Worlds, SendsMeetReceivesInOrder) {
  on_all_ranks(*worlds_, [&](World&, Communicator& group) {
    const int64_t n = group.size(), me = group.position();
    if (n == 1) return;
    const int64_t right = (me + 1) % n, left = (me + n - 1) % n;
    const std::vector<int32_t> first(5, static_cast<int32_t>(me)),
        second(7, static_cast<int32_t>(me + 100));
    std::vector<int32_t> got_first(5), got_second(7);
    // All send before they receive: a send must not hold up the receive behind it.
    const auto call = [&](Operation operation, int64_t peer, const void* source, void* destination,
                          int64_t count) {
      Call result;
      result.operation = operation;
      result.dtype = Dtype::kInt32;
      result.counts = {count};
      result.peer = peer;
      result.source = source;
      result.destination = destination;
      result.deadline_seconds = 20.0;
      return group.start(result);
    };
    std::vector<Ticket> tickets = {call(Operation::kSend, right, first.data(), nullptr, 5),
                                   call(Operation::kSend, right, second.data(), nullptr, 7),
                                   call(Operation::kReceive, left, nullptr, got_first.data(), 5),
                                   call(Operation::kReceive, left, nullptr, got_second.data(), 7)};
    for (Ticket& ticket : tickets) ticket.wait();
    EXPECT_EQ(got_first, std::vector<int32_t>(5, static_cast<int32_t>(left)));
    EXPECT_EQ(got_second, std::vector<int32_t>(7, static_cast<int32_t>(left + 100)));
  });
}

TEST_P(Worlds, LargeVectorsTakeTheStreamingPath) {
  on_all_ranks(*worlds_, [&](World&, Communicator& group) {
    const int64_t count =
        (int64_t{5} << 20) / 4 + 3;  // above the limit, and not a multiple of a cache line
    if (group.size() > 3) return;
    const std::vector<float> own = values<float>(group.position(), count);
    std::vector<float> whole(count * group.size() + 1);
    Call call;
    call.operation = Operation::kAllGather;
    call.counts.assign(group.size(), count);
    call.source = own.data();
    call.destination = whole.data() + 1;  // not aligned to a cache line
    group.start(call).wait();
    for (int64_t part = 0; part < group.size(); ++part) {
      const std::vector<float> expected = values<float>(part, count);
      EXPECT_EQ(
          std::memcmp(whole.data() + 1 + part * count, expected.data(), count * sizeof(float)), 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Worlds, ::testing::Values(1, 2, 3, 4, 8),
                         [](const auto& test) { return std::to_string(test.param); });

}  // namespace
}  // namespace strait::comm
