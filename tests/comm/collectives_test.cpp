// Every operation of the threads backend against a plain loop: worlds x counts x dtypes x in place
// x accumulate x algorithm, on real threads.
#include <gtest/gtest.h>

#include <cstring>
#include <tuple>

#include "tests/comm/collective_grid.h"

namespace strait::comm {
namespace {

class Collectives : public ::testing::TestWithParam<Case> {
 protected:
  template <class T>
  void run_grid() const {
    ThreadWorldOptions options;
    options.algorithm = GetParam().algorithm;
    const auto worlds =
        make_thread_worlds(GetParam().ranks, test_cluster(GetParam().ranks), options);
    on_all_ranks(*worlds,
                 [&](World&, Communicator& group) { CollectiveGrid{GetParam()}.run<T>(group); });
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

TEST_P(Worlds, ShiftHandsOn) {
  for (const bool accumulate : {false, true})
    on_all_ranks(*worlds_, [&](World&, Communicator& group) {
      const int64_t n = group.size();
      for (const int64_t count : {0, 1, 4099}) {
        const int64_t skipped = count % std::max<int64_t>(1, n - 1);
        const int64_t before = (group.position() + 2 * n - 1 - skipped) % n;
        const std::vector<double> source = values<double>(group.position(), count);
        std::vector<double> destination(count, 5.0), expected = values<double>(before, count);
        for (double& number : expected) number += accumulate ? 5.0 : 0.0;
        Call call;
        call.operation = Operation::kShift;
        call.peer = skipped;
        call.dtype = Dtype::kFloat64;
        call.counts = {count};
        call.accumulate = accumulate;
        call.source = source.data();
        call.destination = destination.data();
        group.start(call).wait();
        EXPECT_EQ(destination, expected);
      }
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
    // The algorithm is the backend's choice here: sums of at most 8 terms in any order differ by 7
    // roundings.
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
