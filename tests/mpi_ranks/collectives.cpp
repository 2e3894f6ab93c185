// Every operation among MPI processes against plain loops, in the window and outside it.
#include <numeric>

#include "strait/collective/nesting.h"
#include "strait/collective/traffic.h"
#include "strait/comm/call_form.h"
#include "tests/comm/collective_grid.h"
#include "tests/mpi_ranks/ranks.h"

namespace strait::comm {
namespace {

using collective::Algorithm;

TEST(MpiCollectives, Grid) {
  Communicator& group = Ranks::get().all();
  for (const bool in_place : {false, true})
    for (const bool accumulate : {false, true}) {
      const CollectiveGrid grid{{group.size(),
                                 Ranks::get().options.algorithm.value_or(Algorithm::kDirect),
                                 in_place, accumulate}};
      grid.run<float>(group);
      grid.run<double>(group);
      grid.run<int32_t>(group);
      grid.run<int64_t>(group);
      grid.run<uint8_t>(group);
    }
}

/// Memory of the window for the life of a test.
template <class T>
class Window {
 public:
  explicit Window(int64_t count)
      : data_(static_cast<T*>(
            Ranks::get().session.window().allocate(count * static_cast<int64_t>(sizeof(T))))) {}
  ~Window() { Ranks::get().session.window().release(data_); }
  T* data() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_;
};

TEST(MpiCollectives, InTheWindowAndInPlace) {
  Communicator& group = Ranks::get().all(1);
  const int64_t n = group.size(), me = group.position();
  const CollectiveGrid grid{
      {n, Ranks::get().options.algorithm.value_or(Algorithm::kDirect), true, false}};
  for (const int64_t part : {1, 1000, 100000}) {
    Window<double> whole(n * part);
    Call call;
    call.dtype = Dtype::kFloat64;
    call.counts.assign(n, part);
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (int64_t i = 0; i < part; ++i) whole[me * part + i] = value<double>(me, i);
      call.operation = Operation::kAllGather;
      call.source = whole.data() + me * part;
      call.destination = whole.data();
      group.run(call);
      for (int64_t from = 0; from < n; ++from)
        for (int64_t i = 0; i < part; ++i)
          ASSERT_EQ(whole[from * part + i], value<double>(from, i));
      for (int64_t i = 0; i < n * part; ++i) whole[i] = value<double>(me, i);
      call.operation = Operation::kAllReduce;
      call.source = whole.data();
      group.start(call).wait();
      for (int64_t at = 0; at < n * part; ++at)
        ASSERT_EQ(whole[at], grid.reference_sum<double>(at / part, at)) << at;
      for (int64_t i = 0; i < n * part; ++i) whole[i] = value<double>(me, i);
      call.operation = Operation::kReduceScatter;
      call.destination = whole.data() + me * part;
      group.start(call).wait();
      for (int64_t i = 0; i < part; ++i)
        ASSERT_EQ(whole[me * part + i], grid.reference_sum<double>(me, me * part + i));
    }
  }
}

/// Sums of small integers are exact in any order.
TEST(MpiCollectives, LongVectors) {
  Communicator& group = Ranks::get().all();
  const int64_t n = group.size(), me = group.position();
  const int64_t part = (int64_t{5} << 20) / n + 37;
  const auto number = [](int64_t i) { return static_cast<float>(i % 97); };
  std::vector<float> source(n * part), destination(n * part, 3.0f);
  for (int64_t i = 0; i < n * part; ++i) source[i] = static_cast<float>(me + 1) * number(i);
  const float factor = static_cast<float>(n * (n + 1)) / 2.0f;
  Call call;
  call.counts.assign(n, part);
  call.source = source.data();
  call.destination = destination.data();
  call.operation = Operation::kAllReduce;
  call.accumulate = true;
  group.start(call).wait();
  for (int64_t i = 0; i < n * part; ++i) ASSERT_EQ(destination[i], 3.0f + factor * number(i)) << i;
  call.accumulate = false;
  call.operation = Operation::kReduceScatter;
  group.start(call).wait();
  for (int64_t i = 0; i < part; ++i) ASSERT_EQ(destination[i], factor * number(me * part + i)) << i;
  call.operation = Operation::kAllGather;
  group.start(call).wait();
  for (int64_t i = 0; i < n * part; ++i)
    ASSERT_EQ(destination[i], static_cast<float>(i / part + 1) * number(i % part)) << i;
}

TEST(MpiCollectives, AllToAllOfUnevenParts) {
  Communicator& group = Ranks::get().all();
  const int64_t n = group.size(), me = group.position();
  const auto count = [](int64_t from, int64_t to) { return (from * 5 + to * 3) % 4 * 700; };
  for (const bool accumulate : {false, true}) {
    Call call;
    call.operation = Operation::kAllToAll;
    call.accumulate = accumulate;
    std::vector<float> source, destination;
    for (int64_t peer = 0; peer < n; ++peer) {
      call.counts.push_back(count(me, peer));
      call.receive_counts.push_back(count(peer, me));
      for (int64_t i = 0; i < count(me, peer); ++i)
        source.push_back(static_cast<float>(me * 100000 + peer * 10000 + i));
    }
    destination.assign(total(call.receive_counts), 1.0f);
    call.source = source.data();
    call.destination = destination.data();
    group.start(call).wait();
    int64_t at = 0;
    for (int64_t peer = 0; peer < n; ++peer)
      for (int64_t i = 0; i < count(peer, me); ++i, ++at)
        ASSERT_EQ(destination[at],
                  static_cast<float>(peer * 100000 + me * 10000 + i) + (accumulate ? 1.0f : 0.0f));
  }
}

TEST(MpiCollectives, ShiftHandsOn) {
  Communicator& group = Ranks::get().all();
  const int64_t n = group.size(), me = group.position();
  for (const int64_t elements : {0, 3, 50000, 50001}) {
    const int64_t skipped = elements % std::max<int64_t>(1, n - 1);
    const int64_t before = (me + 2 * n - 1 - skipped) % n;
    std::vector<int64_t> source(elements), destination(elements, -1);
    for (int64_t i = 0; i < elements; ++i) source[i] = me * 100000 + i;
    Call call;
    call.operation = Operation::kShift;
    call.peer = skipped;
    call.dtype = Dtype::kInt64;
    call.counts = {elements};
    call.source = source.data();
    call.destination = destination.data();
    group.start(call).wait();
    for (int64_t i = 0; i < elements; ++i) ASSERT_EQ(destination[i], before * 100000 + i);
  }
}

TEST(MpiCollectives, BroadcastFromEveryRoot) {
  Communicator& group = Ranks::get().all();
  for (int64_t root = 0; root < group.size(); ++root)
    for (const int64_t elements : {0, 3, 5000}) {
      std::vector<int64_t> source(elements), destination(elements, -1);
      for (int64_t i = 0; i < elements; ++i) source[i] = root * 1000 + i;
      Call call;
      call.operation = Operation::kBroadcast;
      call.dtype = Dtype::kInt64;
      call.counts = {elements};
      call.peer = root;
      call.source = group.position() == root ? source.data() : nullptr;
      call.destination = group.position() == root ? nullptr : destination.data();
      group.start(call).wait();
      if (group.position() == root) continue;
      ASSERT_EQ(destination, source);
    }
}

TEST(MpiCollectives, SendsMeetReceivesInOrderAndDoNotHoldUpOthers) {
  Communicator& group = Ranks::get().all(2);
  const int64_t n = group.size(), me = group.position();
  if (n == 1) return;
  const int64_t to = (me + 1) % n, from = (me + n - 1) % n;
  for (const int64_t elements : {1, 3000, 300000}) {
    std::vector<std::vector<int32_t>> out(3), in(3);
    std::vector<Ticket> tickets;
    for (int64_t k = 0; k < 3; ++k) {
      out[k].assign(elements, static_cast<int32_t>(me * 10 + k));
      in[k].assign(elements, -1);
      Call call;
      call.operation = Operation::kSend;
      call.dtype = Dtype::kInt32;
      call.counts = {elements};
      call.peer = to;
      call.source = out[k].data();
      tickets.push_back(group.start(call));
    }
    for (int64_t k = 0; k < 3; ++k) {
      Call call;
      call.operation = Operation::kReceive;
      call.dtype = Dtype::kInt32;
      call.counts = {elements};
      call.peer = from;
      call.destination = in[k].data();
      tickets.push_back(group.start(call));
    }
    for (Ticket& ticket : tickets) ticket.wait();
    for (int64_t k = 0; k < 3; ++k)
      ASSERT_EQ(in[k], std::vector<int32_t>(elements, static_cast<int32_t>(from * 10 + k)));
  }
}

/// From the first rank to the last, which has done nothing but wait for another message meanwhile:
/// what is longer than MPI sends at once goes in pieces that are not.
TEST(MpiCollectives, MessagesToOtherHostsAreSentBeforeTheyAreAskedFor) {
  const Ranks& ranks = Ranks::get();
  Communicator &messages = ranks.all(5), &after = ranks.all(6);
  const int64_t last = messages.size() - 1, me = messages.position();
  if (ranks.session.host_names().front() == ranks.session.host_names().back()) return;
  const auto call_of = [](Operation operation, std::vector<int32_t>& data, int64_t peer) {
    Call call;
    call.operation = operation;
    call.dtype = Dtype::kInt32;
    call.counts = {std::ssize(data)};
    call.peer = peer;
    call.deadline_seconds = 20;
    if (operation == Operation::kSend)
      call.source = data.data();
    else
      call.destination = data.data();
    return call;
  };
  for (const int64_t elements : {10000, 30000, 262144}) {
    std::vector<int32_t> data(static_cast<size_t>(elements)), end(1, 1);
    if (me == 0) {
      std::iota(data.begin(), data.end(), 7);
      messages.start(call_of(Operation::kSend, data, last)).wait();
      after.start(call_of(Operation::kSend, end, last)).wait();
    } else if (me == last) {
      after.start(call_of(Operation::kReceive, end, 0)).wait();
      messages.start(call_of(Operation::kReceive, data, 0)).wait();
      for (int64_t at = 0; at < elements; ++at) ASSERT_EQ(data[at], 7 + at);
    }
  }
}

TEST(MpiCollectives, LanesAndGroupsRunSideBySide) {
  World& world = Ranks::get().world;
  const int64_t n = world.size(), me = world.rank();
  std::vector<int64_t> half;
  for (int64_t rank = me % 2; rank < n; rank += 2) half.push_back(rank);
  std::vector<Ticket> tickets;
  std::vector<std::vector<double>> results(40);
  for (int64_t k = 0; k < 40; ++k) {
    Communicator& group = k % 3 == 0 ? world.communicator(half, 4) : Ranks::get().all(3 + k % 2);
    results[k].assign(700, static_cast<double>(me + k));
    Call call;
    call.operation = Operation::kAllReduce;
    call.dtype = Dtype::kFloat64;
    call.counts = {700};
    call.source = results[k].data();
    call.destination = results[k].data();
    tickets.push_back(
        group.start(call, k > 5 ? std::vector<Ticket>{tickets[k - 5]} : std::vector<Ticket>{}));
  }
  for (int64_t k = 0; k < 40; ++k) {
    tickets[k].wait();
    double sum = 0;
    for (const int64_t rank : k % 3 == 0 ? half : all_ranks(n))
      sum += static_cast<double>(rank + k);
    for (const double value : results[k]) ASSERT_EQ(value, sum) << k;
  }
}

TEST(MpiCollectives, LedgerIsTheSchedule) {
  World& world = Ranks::get().world;
  const int64_t n = world.size();
  const Cluster cluster = test_cluster(n);
  Communicator& group = Ranks::get().all(7);
  for (const Operation operation :
       {Operation::kAllGather, Operation::kReduceScatter, Operation::kAllReduce})
    for (const int64_t part : {3, 3000}) {
      Call call;
      call.operation = operation;
      call.dtype = Dtype::kFloat64;
      call.counts.assign(n, part);
      std::vector<double> source(n * part), destination(n * part);
      call.source = source.data();
      call.destination = destination.data();
      group.start(call).wait();
      Ledger ledger;
      group.drain_ledger(ledger);
      const CallForm form = form_of(call, all_ranks(n), cluster, Ranks::get().options.algorithm);
      const std::vector<int64_t> want =
          collective::elements_by_level(form.request, cluster, all_ranks(n));
      std::vector<double> counted;
      for (size_t level = 0; level < want.size(); ++level)
        counted.push_back(static_cast<double>(ledger.payload_bytes(static_cast<int64_t>(level))));
      call = {};
      call.operation = Operation::kAllReduce;
      call.dtype = Dtype::kFloat64;
      call.counts = {static_cast<int64_t>(counted.size())};
      call.source = counted.data();
      call.destination = counted.data();
      Ranks::get().all(8).start(call).wait();
      for (size_t level = 0; level < want.size(); ++level)
        EXPECT_EQ(counted[level], static_cast<double>(want[level] * 8))
            << operation_name(operation) << " level " << level;
    }
}

TEST(MpiCollectives, TheLedgerNoticesChunksSentTwiceOrDropped) {
  World& world = Ranks::get().world;
  const int64_t n = world.size(), part = 3000;
  Communicator& group = Ranks::get().all(11);
  const Cluster cluster = test_cluster(n);
  Call call;
  call.operation = Operation::kAllGather;
  call.dtype = Dtype::kFloat64;
  call.counts.assign(n, part);
  std::vector<double> source(part), destination(n * part);
  call.source = source.data();
  call.destination = destination.data();
  // Between hosts, messages bring what is counted: as many as come go, and `times` is not asked.
  const std::vector<std::string>& hosts = Ranks::get().session.host_names();
  const int64_t me = world.rank();
  const CallForm form = form_of(call, all_ranks(n), cluster, Ranks::get().options.algorithm);
  int64_t copied = 0, sent = 0;
  for (const collective::Transfer& pull : collective::transfers_to(form.request, me))
    if (pull.from != me) (hosts[pull.from] == hosts[me] ? copied : sent) += pull.elements * 8;
  ASSERT_EQ(copied + sent, (n - 1) * part * 8);
  // A hierarchical form reads what others have copied, ring and recursive ones too: only totals are
  // compared.
  for (const int64_t times : {1, 2, 0, 1}) {
    Ranks::repeats() = times;
    group.start(call).wait();
    Ranks::repeats() = 1;
    Ledger ledger;
    group.drain_ledger(ledger);
    int64_t counted = 0;
    for (size_t level = 0; level < cluster.levels.size(); ++level)
      counted += ledger.payload_bytes(static_cast<int64_t>(level));
    EXPECT_EQ(counted, times * copied + sent) << times;
  }
}

/// Ten thousand inside a host; between hosts each takes milliseconds where ranks share processors.
TEST(MpiCollectives, ThousandsOfShortOnesInARow) {
  const MpiSession& session = Ranks::get().session;
  const int64_t times = session.ranks_on_host() == session.size() ? 10000 : 1000;
  Communicator& group = Ranks::get().all(5);
  double value = 0;
  for (int64_t k = 0; k < times; ++k) {
    value = static_cast<double>(k + group.position());
    Call call;
    call.operation = Operation::kAllReduce;
    call.dtype = Dtype::kFloat64;
    call.counts = {1};
    call.source = &value;
    call.destination = &value;
    if (k % 2 == 0)
      group.run(call);
    else
      group.start(call).wait();
    const double n = static_cast<double>(group.size());
    ASSERT_EQ(value, n * static_cast<double>(k) + n * (n - 1) / 2);
  }
}

}  // namespace
}  // namespace strait::comm
