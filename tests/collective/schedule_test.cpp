// Every algorithm, replayed on vectors, against the definition of its operation; and its bytes and
// steps.
#include "strait/collective/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "strait/base/errors.h"
#include "tests/collective/replay.h"

namespace strait::collective {
namespace {

using ::testing::HasSubstr;

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

/// Counts of the grid: all 0, all 1, odd, large, uneven with zeros, everything in one part.
std::vector<std::vector<int64_t>> count_grid(int64_t parts) {
  std::vector<std::vector<int64_t>> grid;
  for (const int64_t each : {0, 1, 7, 1000}) grid.push_back(std::vector<int64_t>(parts, each));
  std::vector<int64_t> uneven(parts), lumped(parts, 0);
  for (int64_t part = 0; part < parts; ++part) uneven[part] = (part * 5 + 3) % 4 * 3;
  lumped[parts / 2] = 11;
  grid.push_back(uneven);
  grid.push_back(lumped);
  return grid;
}

/// A value that tells member, index and (by its fraction) the order of additions apart.
double value(int64_t member, int64_t index) {
  return 1.0 / static_cast<double>(3 + member * 17 + index);
}

struct Case {
  int64_t members;
  Algorithm algorithm;
  std::vector<std::vector<int64_t>> nest = {};
  int64_t pieces = 1;
};

class ScheduleGrid : public ::testing::TestWithParam<Case> {
 protected:
  Request request(Operation operation, std::vector<int64_t> counts) const {
    return {operation, GetParam().algorithm, GetParam().members, std::move(counts), 0,
            0,         GetParam().nest,      GetParam().pieces};
  }

  std::vector<Buffers> run(const Request& request, int64_t source, int64_t destination,
                           int64_t scratch = 0) const {
    std::vector<Buffers> buffers(request.members);
    for (int64_t member = 0; member < request.members; ++member) {
      buffers[member].source.resize(source < 0 ? request.counts[member] : source);
      for (size_t i = 0; i < buffers[member].source.size(); ++i)
        buffers[member].source[i] = value(member, static_cast<int64_t>(i));
      buffers[member].destination.assign(destination < 0 ? request.counts[member] : destination,
                                         kUnwritten);
      buffers[member].scratch.assign(scratch, kUnwritten);
    }
    replay(make_schedule(request), buffers);
    return buffers;
  }

  /// Recursive halving: members apart by the widest step are added first.
  double halved_sum(int64_t begin, int64_t stride, int64_t index) const {
    if (stride == GetParam().members) return value(begin, index);
    return halved_sum(begin, 2 * stride, index) + halved_sum(begin + stride, 2 * stride, index);
  }

  /// Groups of one level inside [begin, end), each summed first.
  double nested_sum(int64_t begin, int64_t end, int64_t level, int64_t index) const {
    double result = 0;
    for (int64_t at = begin, next = begin; at < end; at = next) {
      for (next = at + 1;
           level >= 0 && next < end && GetParam().nest[level][next] == GetParam().nest[level][at];
           ++next) {
      }
      const double term = level < 0 ? value(at, index) : nested_sum(at, next, level - 1, index);
      result = at == begin ? term : result + term;
    }
    return result;
  }

  /// The sum of element `index` of part `part` in the documented order of the algorithm.
  double expected_sum(int64_t part, int64_t index) const {
    const int64_t members = GetParam().members;
    if (GetParam().algorithm == Algorithm::kRecursive) return halved_sum(0, 1, index);
    if (GetParam().algorithm == Algorithm::kHierarchical)
      return nested_sum(0, members, static_cast<int64_t>(GetParam().nest.size()) - 1, index);
    const int64_t first = GetParam().algorithm == Algorithm::kRing ? part + 1 : 0;
    double result = value(first % members, index);
    for (int64_t k = 1; k < members; ++k) result += value((first + k) % members, index);
    return result;
  }
};

TEST_P(ScheduleGrid, AllGatherBringsEveryPartToEveryMember) {
  for (const auto& counts : count_grid(GetParam().members)) {
    const auto buffers = run(request(Operation::kAllGather, counts), -1, sum(counts));
    std::vector<double> expected;
    for (int64_t part = 0; part < GetParam().members; ++part)
      for (int64_t i = 0; i < counts[part]; ++i) expected.push_back(value(part, i));
    for (const Buffers& own : buffers) EXPECT_EQ(own.destination, expected);
  }
}

TEST_P(ScheduleGrid, ReduceScatterSumsInTheDocumentedOrder) {
  for (const auto& counts : count_grid(GetParam().members)) {
    const auto buffers =
        run(request(Operation::kReduceScatter, counts), sum(counts), -1, sum(counts));
    int64_t offset = 0;
    for (int64_t part = 0; part < GetParam().members; offset += counts[part++])
      for (int64_t i = 0; i < counts[part]; ++i)
        ASSERT_EQ(buffers[part].destination[i], expected_sum(part, offset + i)) << "part " << part;
  }
}

TEST_P(ScheduleGrid, AllReduceGivesEveryMemberTheSameSum) {
  for (const auto& counts : count_grid(GetParam().members)) {
    const auto buffers =
        run(request(Operation::kAllReduce, counts), sum(counts), sum(counts), sum(counts));
    std::vector<double> expected;
    for (int64_t part = 0; part < GetParam().members; ++part)
      for (int64_t i = 0; i < counts[part]; ++i)
        expected.push_back(expected_sum(part, static_cast<int64_t>(expected.size())));
    for (const Buffers& own : buffers) EXPECT_EQ(own.destination, expected);
  }
}

TEST_P(ScheduleGrid, StepsAreThoseOfTheTable) {
  const auto& [members, algorithm, nest, pieces] = GetParam();
  const int64_t levels = static_cast<int64_t>(nest.size()) + 1;
  int64_t phase = members == 1 ? 0 : 1;
  if (algorithm == Algorithm::kRing) phase = members - 1;
  if (algorithm == Algorithm::kRecursive) phase = members == 8 ? 3 : members == 4 ? 2 : members - 1;
  if (algorithm == Algorithm::kHierarchical && members > 1) phase = levels;
  for (const auto& [operation, steps] :
       std::vector<std::pair<Operation, int64_t>>{{Operation::kAllGather, phase},
                                                  {Operation::kReduceScatter, phase},
                                                  {Operation::kAllReduce, 2 * phase}}) {
    if (members > 1) {
      EXPECT_EQ(latency_steps(operation, algorithm, members, levels, pieces), steps + pieces - 1);
    }
    EXPECT_EQ(latency_steps(operation, algorithm, members, levels), steps);
    if (members == 1) continue;
    const Schedule schedule =
        make_schedule(request(operation, std::vector<int64_t>(members, 64 * pieces)));
    EXPECT_EQ(schedule.steps, steps + pieces - 1) << operation_name(operation);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, ScheduleGrid,
    ::testing::Values(Case{1, Algorithm::kDirect}, Case{2, Algorithm::kDirect},
                      Case{3, Algorithm::kDirect}, Case{4, Algorithm::kDirect},
                      Case{5, Algorithm::kDirect}, Case{8, Algorithm::kDirect},
                      Case{1, Algorithm::kRing}, Case{2, Algorithm::kRing},
                      Case{3, Algorithm::kRing}, Case{4, Algorithm::kRing},
                      Case{5, Algorithm::kRing}, Case{8, Algorithm::kRing},
                      Case{1, Algorithm::kRecursive}, Case{2, Algorithm::kRecursive},
                      Case{4, Algorithm::kRecursive}, Case{8, Algorithm::kRecursive}),
    [](const auto& test) {
      return std::string(algorithm_name(test.param.algorithm)) + std::to_string(test.param.members);
    });

INSTANTIATE_TEST_SUITE_P(
    Nests, ScheduleGrid,
    ::testing::Values(
        Case{1, Algorithm::kHierarchical, {}}, Case{4, Algorithm::kHierarchical, {{0, 0, 1, 1}}},
        Case{3, Algorithm::kHierarchical, {{0, 0, 1}}},
        Case{5, Algorithm::kHierarchical, {{0, 1, 1, 1, 2}}},
        Case{6, Algorithm::kHierarchical, {{0, 0, 0, 1, 1, 1}}},
        Case{8, Algorithm::kHierarchical, {{0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 1, 1, 1, 1}}},
        Case{8, Algorithm::kHierarchical, {{0, 1, 1, 2, 2, 3, 4, 4}, {0, 0, 0, 0, 0, 1, 1, 1}}},
        Case{1, Algorithm::kHierarchical, {}, 3},
        Case{4, Algorithm::kHierarchical, {{0, 0, 1, 1}}, 2},
        Case{5, Algorithm::kHierarchical, {{0, 1, 1, 1, 2}}, 5},
        Case{
            8, Algorithm::kHierarchical, {{0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 1, 1, 1, 1}}, 4}));

TEST(Schedule, AllToAllDeliversEveryCell) {
  for (const int64_t members : {1, 2, 3, 4, 5, 8}) {
    std::vector<int64_t> counts(members * members);
    for (int64_t cell = 0; cell < members * members; ++cell) counts[cell] = (cell * 7 + 2) % 5;
    std::vector<Buffers> buffers(members);
    std::vector<std::vector<double>> expected(members);
    for (int64_t from = 0; from < members; ++from)
      for (int64_t to = 0; to < members; ++to)
        for (int64_t i = 0; i < counts[from * members + to]; ++i) {
          const double sent = static_cast<double>(from * 10000 + to * 100 + i);
          buffers[from].source.push_back(sent);
          expected[to].push_back(sent);
        }
    for (int64_t to = 0; to < members; ++to)
      buffers[to].destination.assign(expected[to].size(), kUnwritten);
    replay(make_schedule({Operation::kAllToAll, Algorithm::kDirect, members, counts, 0, 0, {}}),
           buffers);
    for (int64_t to = 0; to < members; ++to) EXPECT_EQ(buffers[to].destination, expected[to]);
  }
}

TEST(Schedule, AllToAllOfOneRowIsThatOfEqualRows) {
  for (const int64_t members : {1, 2, 3, 8}) {
    Request request{Operation::kAllToAll, Algorithm::kDirect, members, {}, 0, 0, {}};
    for (int64_t part = 0; part < members; ++part) request.counts.push_back((part * 7 + 2) % 5);
    Request square = request;
    for (int64_t from = 1; from < members; ++from)
      square.counts.insert(square.counts.end(), request.counts.begin(), request.counts.end());
    EXPECT_EQ(make_schedule(request).transfers, make_schedule(square).transfers);
  }
}

TEST(Schedule, ShiftHandsEverySourceToTheNextMemberOrAsFarBehind) {
  for (const auto& [members, skipped] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 0}, {2, 0}, {3, 0}, {3, 1}, {5, 0}, {5, 1}, {5, 3}}) {
    std::vector<Buffers> buffers(members);
    for (int64_t member = 0; member < members; ++member) {
      buffers[member].source = {value(member, 0), value(member, 1)};
      buffers[member].destination.assign(2, kUnwritten);
    }
    const Schedule schedule =
        make_schedule({Operation::kShift, Algorithm::kDirect, members, {2}, skipped, 0, {}});
    EXPECT_EQ(static_cast<int64_t>(schedule.transfers.size()), members);
    replay(schedule, buffers);
    for (int64_t member = 0; member < members; ++member)
      EXPECT_EQ(buffers[(member + 1 + skipped) % members].destination, buffers[member].source);
  }
}

TEST(Schedule, BroadcastAndSendReachExactlyTheirReceivers) {
  for (const int64_t members : {2, 3, 5}) {
    std::vector<Buffers> buffers(members);
    for (int64_t member = 0; member < members; ++member) {
      buffers[member].source = {value(member, 0), value(member, 1)};
      buffers[member].destination.assign(2, kUnwritten);
    }
    auto sent = buffers;
    replay(make_schedule({Operation::kBroadcast, Algorithm::kDirect, members, {2}, 1, 0, {}}),
           buffers);
    for (const Buffers& own : buffers) EXPECT_EQ(own.destination, buffers[1].source);
    replay(make_schedule({Operation::kSend,
                          Algorithm::kDirect,
                          members,
                          {2},
                          1,
                          members - 1 == 1 ? 0 : members - 1,
                          {}}),
           sent);
    for (int64_t member = 0; member < members; ++member) {
      const bool receives = member == (members == 2 ? 0 : members - 1);
      EXPECT_EQ(sent[member].destination[0], receives ? sent[1].source[0] : kUnwritten);
    }
  }
}

TEST(Schedule, BarrierMovesNothingInOneStep) {
  EXPECT_TRUE(
      make_schedule({Operation::kBarrier, Algorithm::kDirect, 4, {}, 0, 0, {}}).transfers.empty());
  EXPECT_EQ(latency_steps(Operation::kBarrier, Algorithm::kDirect, 4), 1);
}

TEST(Schedule, EvenCountsCoverTheVector) {
  EXPECT_EQ(even_counts(10, 4), (std::vector<int64_t>{3, 3, 3, 1}));
  EXPECT_EQ(even_counts(3, 4), (std::vector<int64_t>{1, 1, 1, 0}));
  EXPECT_EQ(even_counts(5, 4), (std::vector<int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(even_counts(0, 3), (std::vector<int64_t>{0, 0, 0}));
}

TEST(Schedule, HierarchicalBroadcastCrossesEachBoundaryOnce) {
  const std::vector<int64_t> hosts = {0, 0, 0, 1, 1, 2};
  for (int64_t root = 0; root < 6; ++root) {
    const Request request{
        Operation::kBroadcast, Algorithm::kHierarchical, 6, {2}, root, 0, {hosts}};
    std::vector<Buffers> buffers(6);
    for (int64_t member = 0; member < 6; ++member) {
      buffers[member].source = {value(member, 0), value(member, 1)};
      buffers[member].destination.assign(2, kUnwritten);
    }
    replay(make_schedule(request), buffers);
    for (const Buffers& own : buffers) EXPECT_EQ(own.destination, buffers[root].source);
    int64_t crossing = 0;
    for (const Transfer& transfer : make_schedule(request).transfers)
      crossing += hosts[transfer.from] != hosts[transfer.to] ? 1 : 0;
    EXPECT_EQ(crossing, 2);
  }
}

TEST(Schedule, PushesAreThePullsOfTheOthers) {
  const Request request{
      Operation::kAllReduce, Algorithm::kHierarchical, 6, {1, 2, 3, 4, 5, 6}, 0, 0,
      {{0, 0, 0, 1, 1, 1}}};
  std::vector<Transfer> pushes, pulls;
  for (int64_t member = 0; member < 6; ++member) {
    for (const Transfer& transfer : transfers_from(request, member)) pushes.push_back(transfer);
    for (const Transfer& transfer : transfers_to(request, member))
      if (transfer.from != member) pulls.push_back(transfer);
  }
  EXPECT_THAT(pushes, ::testing::UnorderedElementsAreArray(pulls));
}

std::string refusal(const Request& request) {
  try {
    make_schedule(request);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Schedule, RefusesWhatDoesNotFit) {
  EXPECT_THAT(refusal({Operation::kAllGather, Algorithm::kDirect, 3, {1, 2}, 0, 0, {}}),
              HasSubstr("expected 3 counts, got 2"));
  EXPECT_THAT(refusal({Operation::kAllToAll, Algorithm::kDirect, 2, {1, 2, 3}, 0, 0, {}}),
              HasSubstr("expected 4 counts"));
  EXPECT_THAT(refusal({Operation::kAllReduce, Algorithm::kDirect, 2, {1, -1}, 0, 0, {}}),
              HasSubstr("part 1 is -1"));
  EXPECT_THAT(refusal({Operation::kAllGather, Algorithm::kRecursive, 3, {1, 1, 1}, 0, 0, {}}),
              HasSubstr("power of two members, not 3"));
  EXPECT_THAT(
      refusal({Operation::kAllGather, Algorithm::kHierarchical, 3, {1, 1, 1}, 0, 0, {{0, 1}}}),
      HasSubstr("2 positions for 3 members"));
  EXPECT_THAT(
      refusal({Operation::kAllGather, Algorithm::kHierarchical, 3, {1, 1, 1}, 0, 0, {{1, 0, 2}}}),
      HasSubstr("must not descend"));
  EXPECT_THAT(refusal({Operation::kAllGather,
                       Algorithm::kHierarchical,
                       3,
                       {1, 1, 1},
                       0,
                       0,
                       {{0, 0, 1}, {0, 1, 1}}}),
              HasSubstr("parts a group of level 0"));
  EXPECT_THAT(refusal({Operation::kAllGather, Algorithm::kRing, 2, {1, 1}, 0, 0, {}, 2}),
              HasSubstr("2 pieces in the ring form; the nearest valid number is 1"));
  EXPECT_THAT(refusal({Operation::kAllGather, Algorithm::kHierarchical, 2, {1, 1}, 0, 0, {}, 0}),
              HasSubstr("0 pieces"));
  EXPECT_THAT(refusal({Operation::kBroadcast, Algorithm::kRing, 2, {1}, 0, 0, {}}),
              HasSubstr("direct"));
  EXPECT_THAT(refusal({Operation::kBroadcast, Algorithm::kDirect, 2, {1}, 2, 0, {}}),
              HasSubstr("not in 0..1"));
  EXPECT_THAT(refusal({Operation::kSend, Algorithm::kDirect, 2, {1}, 1, 1, {}}),
              HasSubstr("both sides"));
  EXPECT_THAT(refusal({Operation::kBarrier, Algorithm::kDirect, 0, {}, 0, 0, {}}),
              HasSubstr("at least one member"));
}

}  // namespace
}  // namespace strait::collective
