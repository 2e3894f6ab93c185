// Bytes: what the backend counted equals the schedule, per member, level and operation, and follows
// the transport when that sends a chunk twice or drops it.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>

#include "strait/codec/codec.h"
#include "strait/collective/nesting.h"
#include "tests/collective/walked_traffic.h"
#include "tests/comm/thread_ranks.h"

namespace strait::comm {
namespace {

using collective::Algorithm;
using collective::Request;

struct Exchange {
  Request request;
  std::vector<Ledger> ledgers;  // by position
};

/// Runs one operation of float64 zeros among `members` and returns what every member counted.
Exchange exchange(const Request& request, const std::vector<int64_t>& members,
                  const Cluster& cluster, std::function<int64_t()> repeats = {}) {
  ThreadWorldOptions options;
  options.faults.repeats = std::move(repeats);
  options.algorithm = request.algorithm;
  const auto worlds = make_thread_worlds(cluster.ranks, cluster, options);
  Exchange result{request, std::vector<Ledger>(members.size())};
  const int64_t n = request.members;
  run_ranks(*worlds, [&](World& world) {
    if (!std::binary_search(members.begin(), members.end(), world.rank())) return;
    Communicator& group = world.communicator(members, 0);
    const int64_t me = group.position();
    Call call;
    call.operation = request.operation;
    call.dtype = Dtype::kFloat64;
    call.counts = request.counts;
    call.peer = request.root;
    if (request.operation == Operation::kAllToAll) {
      call.counts.clear();
      for (int64_t peer = 0; peer < n; ++peer) {
        call.counts.push_back(request.counts[me * n + peer]);
        call.receive_counts.push_back(request.counts[peer * n + me]);
      }
    }
    if (request.operation == Operation::kSend) {
      if (me != request.root && me != request.receiver) return;
      if (me == request.receiver) call.operation = Operation::kReceive;
      call.peer = me == request.root ? request.receiver : request.root;
    }
    std::vector<double> source(total(request.counts)), destination(total(request.counts));
    call.source = source.data();
    call.destination = destination.data();
    for (int repeat = 0; repeat < 2; ++repeat) group.start(call).wait();
    group.drain_ledger(result.ledgers[me]);
    Ledger again;
    group.drain_ledger(again);
    EXPECT_TRUE(again.rows().empty());
  });
  return result;
}

/// The same figures from a schedule: bytes by (sender, level), of two operations of 8-byte
/// elements.
std::map<std::pair<int64_t, int64_t>, int64_t> expected_bytes(const collective::Schedule& schedule,
                                                              const Cluster& cluster,
                                                              const std::vector<int64_t>& members) {
  std::map<std::pair<int64_t, int64_t>, int64_t> result;
  for (const auto& [pair, elements] : collective::elements_per_pair(schedule))
    result[{pair.first, cluster.level_between(members[pair.first], members[pair.second])}] +=
        2 * 8 * elements;
  std::erase_if(result, [](const auto& entry) { return entry.second == 0; });
  return result;
}

std::map<std::pair<int64_t, int64_t>, int64_t> counted_bytes(const Exchange& exchange) {
  std::map<std::pair<int64_t, int64_t>, int64_t> result;
  for (size_t member = 0; member < exchange.ledgers.size(); ++member)
    for (const Traffic& row : exchange.ledgers[member].rows()) {
      EXPECT_EQ(row.operation, collective::operation_name(exchange.request.operation));
      EXPECT_EQ(row.count, 2);
      EXPECT_EQ(row.codec, "none");
      EXPECT_EQ(row.metadata_bytes, 0);
      result[{static_cast<int64_t>(member), row.level}] += row.payload_bytes;
    }
  return result;
}

std::vector<Request> requests(const Cluster& cluster, const std::vector<int64_t>& members) {
  const int64_t n = static_cast<int64_t>(members.size());
  const collective::Nest nest = collective::nest_of(cluster, members);
  std::vector<int64_t> even(n, 50), uneven(n), square(n * n);
  for (int64_t part = 0; part < n; ++part) uneven[part] = (part * 7 + 5) % 6;
  for (int64_t cell = 0; cell < n * n; ++cell) square[cell] = (cell * 11 + 4) % 7;
  std::vector<Request> result;
  for (const Operation operation :
       {Operation::kAllGather, Operation::kReduceScatter, Operation::kAllReduce})
    for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing})
      for (const auto& counts : {even, uneven})
        result.push_back({operation, algorithm, n, counts, 0, 0, {}});
  for (const Operation operation :
       {Operation::kAllGather, Operation::kReduceScatter, Operation::kAllReduce})
    for (const auto& counts : {even, uneven}) {
      result.push_back({operation, Algorithm::kHierarchical, n, counts, 0, 0, nest});
      if (collective::is_power_of_two(n))
        result.push_back({operation, Algorithm::kRecursive, n, counts, 0, 0, {}});
    }
  result.push_back({Operation::kBroadcast, Algorithm::kHierarchical, n, {9}, n / 2, 0, nest});
  result.push_back({Operation::kAllToAll, Algorithm::kDirect, n, square, 0, 0, {}});
  result.push_back({Operation::kBroadcast, Algorithm::kDirect, n, {9}, n / 2, 0, {}});
  for (int64_t skipped = 0; skipped < std::max<int64_t>(1, n - 1); ++skipped)
    result.push_back({Operation::kShift, Algorithm::kDirect, n, {9}, skipped, 0, {}});
  result.push_back({Operation::kBarrier, Algorithm::kDirect, n, {}, 0, 0, {}});
  if (n > 1) result.push_back({Operation::kSend, Algorithm::kDirect, n, {9}, n - 1, 0, {}});
  return result;
}

TEST(Ledger, EqualsTheScheduleForEveryOperationGroupAndLevel) {
  const Cluster cluster = test_cluster(8);
  const std::vector<std::vector<int64_t>> groups = {{0},       {0, 1},       {0, 2},
                                                    {1, 2, 3}, {0, 2, 4, 6}, all_ranks(8)};
  for (const auto& members : groups)
    for (const Request& request : requests(cluster, members))
      EXPECT_EQ(counted_bytes(exchange(request, members, cluster)),
                expected_bytes(collective::make_schedule(request), cluster, members))
          << collective::algorithm_name(request.algorithm) << " "
          << collective::operation_name(request.operation) << " among " << members.size();
}

int64_t all_bytes(const Exchange& exchange) {
  int64_t bytes = 0;
  for (const Ledger& ledger : exchange.ledgers)
    for (const Traffic& row : ledger.rows()) bytes += row.payload_bytes;
  return bytes;
}

TEST(Ledger, NoticesAChunkThatTheTransportSendsTwiceOrDrops) {
  const Cluster cluster = test_cluster(4);
  const Request gather{Operation::kAllGather, Algorithm::kDirect, 4, {5, 5, 5, 5}, 0, 0, {}};
  const Request send{Operation::kSend, Algorithm::kDirect, 4, {5}, 0, 3, {}};
  for (const auto& [request, copies, chunks] :
       {std::tuple{gather, 2 * 4 * 4, 2 * 4 * 3}, std::tuple{send, 2, 2}}) {
    const int64_t chunk_bytes = 5 * 8;
    ASSERT_EQ(all_bytes(exchange(request, all_ranks(4), cluster)), chunks * chunk_bytes);
    for (const int64_t times : {0, 2}) {
      int64_t noticed = 0;  // copies of a member's own part are no chunks on a link
      for (int64_t nth = 0; nth < copies; ++nth) {
        std::atomic<int64_t> copy = 0;
        const auto repeats = [&] { return copy++ == nth ? times : 1; };
        const int64_t counted = all_bytes(exchange(request, all_ranks(4), cluster, repeats));
        if (counted == chunks * chunk_bytes) continue;
        EXPECT_EQ(counted, (chunks + times - 1) * chunk_bytes);
        ++noticed;
      }
      EXPECT_GE(noticed, 1);
      EXPECT_LE(noticed, copies);
    }
    // All of them at once: the ledger knows nothing but what was copied.
    EXPECT_EQ(all_bytes(exchange(request, all_ranks(4), cluster, [] { return 2; })),
              2 * chunks * chunk_bytes);
    EXPECT_EQ(all_bytes(exchange(request, all_ranks(4), cluster, [] { return 0; })), 0);
  }
}

/// Two operations whose parts are `pieces` pieces of a codec each, among two ranks.
Traffic coded(const std::string& codec, int64_t elements, int64_t pieces) {
  const codec::CodecSpec spec = codec::parse_codec(codec);
  const int64_t piece_bytes = codec::encoded_bytes(spec, elements);
  const auto worlds = make_thread_worlds(2, test_cluster(2), {});
  Ledger sum;
  std::mutex mutex;
  run_ranks(*worlds, [&](World& world) {
    Call call;
    call.operation = Operation::kAllGather;
    call.dtype = Dtype::kByte;
    call.codec = codec;
    call.piece_bytes = piece_bytes;
    call.counts.assign(2, pieces * piece_bytes);
    std::vector<char> source(pieces * piece_bytes), destination(2 * pieces * piece_bytes);
    call.source = source.data();
    call.destination = destination.data();
    Communicator& group = world.communicator({0, 1}, 0);
    group.start(call).wait();
    const std::lock_guard<std::mutex> lock(mutex);
    group.drain_ledger(sum);
  });
  EXPECT_EQ(sum.rows().size(), 1u);
  return sum.rows().front();
}

TEST(Ledger, ScalesAreToldFromTheCodecAndTheBytesThatMoved) {
  for (const char* codec : {"int8/2048", "int4/128", "int8/64+asymmetric", "bf16"})
    for (const int64_t elements : {16, 2048, 5000})
      for (const int64_t pieces : {1, 3}) {
        const Traffic row = coded(codec, elements, pieces);
        const codec::CodecSpec spec = codec::parse_codec(codec);
        EXPECT_EQ(row.metadata_bytes, 2 * pieces * codec::metadata_bytes(spec, elements)) << codec;
        EXPECT_EQ(row.payload_bytes, 2 * pieces * codec::payload_bytes(spec, elements)) << codec;
      }
}

TEST(Ledger, ClosedFormsWrittenOut) {
  const Cluster cluster = test_cluster(4);  // pairs {0,1} {2,3}
  const int64_t v = 4 * 50 * 8, two = 2;    // bytes of the whole vector, operations
  const auto sum_by_level = [&](Operation operation) {
    const auto result = exchange({operation, Algorithm::kDirect, 4, {50, 50, 50, 50}, 0, 0, {}},
                                 all_ranks(4), cluster);
    Ledger all;
    for (const Ledger& ledger : result.ledgers) all.merge(ledger);
    return std::vector<int64_t>{all.payload_bytes(0), all.payload_bytes(1)};
  };
  // Of the 3 V, every part goes to one neighbour in the pair and to two ranks across.
  EXPECT_EQ(sum_by_level(Operation::kAllGather), (std::vector<int64_t>{two * v, two * 2 * v}));
  EXPECT_EQ(sum_by_level(Operation::kReduceScatter), (std::vector<int64_t>{two * v, two * 2 * v}));
  EXPECT_EQ(sum_by_level(Operation::kAllReduce), (std::vector<int64_t>{two * 2 * v, two * 4 * v}));
}

}  // namespace
}  // namespace strait::comm
