// Shares of cores on machines that hwloc imagines, against plain counting, and when ranks are bound
// at all.
#include "strait/topology/binding.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "strait/base/errors.h"
#include "strait/threads/cores.h"

namespace strait {
namespace {

using testing::HasSubstr;

/// A machine of `domains` NUMA domains of `caches` caches of `cores` cores of `threads` logical
/// processors, which hwloc numbers in this order.
struct Machine {
  int64_t domains, caches, cores, threads;

  int64_t all_cores() const { return domains * caches * cores; }
  std::string text() const {
    return fmt::format("numa:{} l3:{} core:{} pu:{}", domains, caches, cores, threads);
  }
  std::vector<int> cpus() const {
    std::vector<int> all(static_cast<size_t>(all_cores() * threads));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  /// How many groups of `cores_of_group` neighbouring cores a share touches.
  size_t touched(const std::vector<int>& share, int64_t cores_of_group) const {
    std::set<int64_t> groups;
    for (const int cpu : share) groups.insert(cpu / (cores_of_group * threads));
    return groups.size();
  }
};

const std::vector<Machine> kMachines = {{1, 1, 1, 1}, {1, 1, 2, 1}, {2, 2, 4, 2}, {2, 1, 5, 1},
                                        {4, 1, 3, 2}, {2, 3, 2, 1}, {8, 1, 1, 2}};

CoreTree tree_of(const Machine& machine) {
  std::optional<CoreTree> tree = synthetic_core_tree(machine.text());
  return tree ? *tree : CoreTree{};
}

#define NEED_HWLOC() \
  if (!synthetic_core_tree("core:1 pu:1")) GTEST_SKIP() << "built without hwloc"

TEST(CoreTree, HasEveryProcessorOnce) {
  NEED_HWLOC();
  for (const Machine& machine : kMachines) {
    const CoreTree tree = tree_of(machine);
    EXPECT_EQ(tree.num_cores(), machine.all_cores()) << machine.text();
    EXPECT_EQ(tree.all_cpus(), machine.cpus()) << machine.text();
  }
  EXPECT_THROW(synthetic_core_tree("sofas:2"), UserError);
}

TEST(CoreTree, OfThisHostHoldsWhatThisProcessMayUse) {
  NEED_HWLOC();
  const std::optional<CoreTree> host = read_core_tree();
  ASSERT_TRUE(host);
  EXPECT_THAT(host->all_cpus(), testing::IsSupersetOf(usable_cores()));
}

TEST(CoreTree, ARestrictedOneKeepsTheCoresThatAreLeft) {
  NEED_HWLOC();
  const CoreTree tree = tree_of({2, 2, 2, 2});  // 8 cores, 16 processors
  const std::optional<CoreTree> left = restrict_cores(tree, {1, 2, 3, 8, 40});
  ASSERT_TRUE(left);
  EXPECT_EQ(left->num_cores(), 3);  // {1}, {2, 3}, {8}
  EXPECT_EQ(left->all_cpus(), (std::vector<int>{1, 2, 3, 8}));
  EXPECT_FALSE(restrict_cores(tree, {40}));
}

/// The levels of `each` ranks in every cache of a machine, by counting.
std::vector<RankLevel> counted_levels(const Machine& machine, int64_t each) {
  std::vector<RankLevel> levels;
  const auto add = [&](const char* shared, int64_t size) {
    if (size > 1) levels.push_back({shared, size});
  };
  add("l3", each);
  add("numa", machine.caches);
  add("", machine.domains);
  return levels;
}

TEST(RankLevels, AreThePartsOfTheMachine) {
  NEED_HWLOC();
  for (const Machine& machine : std::vector<Machine>{{2, 2, 4, 2}, {2, 3, 2, 1}, {4, 2, 2, 1}})
    for (int64_t each = 1; each <= machine.cores; ++each) {
      if (machine.cores % each != 0) continue;
      const CoreTree tree = tree_of(machine);
      const int64_t ranks = machine.domains * machine.caches * each;
      EXPECT_EQ(rank_levels(tree, divide_cores(tree, ranks)), counted_levels(machine, each))
          << machine.text() << " " << each;
    }
}

TEST(RankLevels, OfRanksInOnePartAreThatPartsAlone) {
  NEED_HWLOC();
  const CoreTree tree = tree_of({2, 2, 4, 1});
  EXPECT_EQ(rank_levels(tree, {{4}, {5}}), (std::vector<RankLevel>{{"numa", 2}}));
  EXPECT_EQ(rank_levels(tree, {{0}, {4}, {8}, {12}}),
            (std::vector<RankLevel>{{"numa", 2}, {"", 2}}));
}

TEST(RankLevels, AreOneWherePartsAreNotAlike) {
  NEED_HWLOC();
  const CoreTree tree = tree_of({2, 1, 4, 1});
  const auto one = [](int64_t ranks) { return std::vector<RankLevel>{{"", ranks}}; };
  EXPECT_EQ(rank_levels(tree, {{0}, {1}, {4}}), one(3));                     // unequal parts
  EXPECT_EQ(rank_levels(tree, {{0}, {4}, {1}, {5}}), one(4));                // not neighbours
  EXPECT_EQ(rank_levels(tree, {{0, 1}, {2, 3, 4}, {5, 6}}), one(3));         // straddles
  EXPECT_EQ(rank_levels(tree, {tree.all_cpus(), tree.all_cpus()}), one(2));  // nobody is bound
  EXPECT_TRUE(rank_levels(tree, {{0, 1}}).empty());
}

TEST(DivideCores, EqualWholeAndDisjoint) {
  NEED_HWLOC();
  for (const Machine& machine : kMachines) {
    for (int64_t ranks = 1; ranks <= machine.all_cores(); ++ranks) {
      SCOPED_TRACE(fmt::format("{} {}", machine.text(), ranks));
      const int64_t each = machine.all_cores() / ranks;
      const auto shares = divide_cores(tree_of(machine), ranks);
      ASSERT_EQ(static_cast<int64_t>(shares.size()), ranks);
      std::set<int> seen;
      for (const std::vector<int>& share : shares) {
        EXPECT_EQ(static_cast<int64_t>(share.size()), each * machine.threads);
        EXPECT_EQ(static_cast<int64_t>(machine.touched(share, 1)), each);  // no core in two shares
        for (const int cpu : share) EXPECT_TRUE(seen.insert(cpu).second) << cpu;
      }
    }
  }
}

// As many shares as can lie in one domain do, and as many in one cache.
TEST(DivideCores, StraddlesNoMoreThanItMust) {
  NEED_HWLOC();
  for (const Machine& machine : kMachines) {
    for (int64_t ranks = 1; ranks <= machine.all_cores(); ++ranks) {
      SCOPED_TRACE(fmt::format("{} {}", machine.text(), ranks));
      const int64_t each = machine.all_cores() / ranks;
      const auto shares = divide_cores(tree_of(machine), ranks);
      for (const int64_t group : {machine.cores, machine.cores * machine.caches}) {
        const int64_t fit = machine.all_cores() / group * (group / each);
        int64_t inside = 0;
        for (const std::vector<int>& share : shares) inside += machine.touched(share, group) == 1;
        EXPECT_GE(inside, std::min(ranks, fit)) << "groups of " << group;
      }
    }
  }
}

TEST(DivideCores, NeighboursAreNeighbours) {
  NEED_HWLOC();
  const auto shares = divide_cores(tree_of({2, 2, 4, 2}), 4);
  EXPECT_EQ(shares[0], (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(shares[3], (std::vector<int>{24, 25, 26, 27, 28, 29, 30, 31}));
}

BindRequest request_of(const std::string& kind, int64_t threads,
                       const std::vector<std::vector<int>>& usable) {
  BindRequest request{kind, threads, {}};
  for (const std::vector<int>& cpus : usable)
    request.usable[static_cast<int64_t>(request.usable.size())] = cpus;
  return request;
}

std::string refusal_of(const BindRequest& request, const std::optional<CoreTree>& host) {
  try {
    choose_binding(request, host);
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "runtime.bind");
    EXPECT_THAT(error.what(), HasSubstr("nearest valid choice is \"none\""));
    return error.what();
  }
  return "";
}

struct BindCase {
  std::string kind;
  int64_t threads;
  std::vector<std::vector<int>> usable;
  std::string text;  // part of what is said
  std::vector<std::vector<int>> cpus;
};

TEST(Binding, WhenRanksAreBoundAndWhy) {
  NEED_HWLOC();
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7}, low = {0, 1, 2, 3}, high = {4, 5, 6, 7};
  const std::vector<BindCase> cases = {
      {"auto", 2, {all, all}, "rank 0 on 0-3, rank 1 on 4-7", {low, high}},
      {"core", 2, {all, all}, "rank 0 on 0-3, rank 1 on 4-7", {low, high}},
      {"none", 2, {all, all}, "runtime.bind = \"none\"", {}},
      {"auto", 8, {all}, "one rank may use all", {}},
      {"core", 8, {all}, "rank 0 on 0-7", {all}},
      {"auto", 1, {all, all, all, all, all}, "5 ranks share 4 cores", {}},
      {"auto", 5, {all, all}, "less than its 5 threads", {}},
      {"auto", 2, {low, high}, "started on cores of their own", {}},
      {"core", 2, {low, high}, "rank 1 on 4-7", {low, high}},
      {"auto", 1, {low, low}, "started on cores 0-3 of 0-7", {}},
      {"core", 1, {low, low}, "rank 1 on 2-3", {{0, 1}, {2, 3}}},
      {"core", 1, {low, high, low, high}, "rank 2 on 2-3", {{0, 1}, {4, 5}, {2, 3}, {6, 7}}},
      {"core", 1, {low, {90, 91}}, "rank 0 on 0-3", {low}},  // rank 1: another control group
  };
  for (const BindCase& c : cases) {
    SCOPED_TRACE(c.kind + ": " + c.text);
    const Binding binding =
        choose_binding(request_of(c.kind, c.threads, c.usable), tree_of({2, 1, 2, 2}));
    EXPECT_THAT(binding.text, HasSubstr(c.text));
    EXPECT_EQ(binding.cpus, request_of("", 1, c.cpus).usable);
  }
}

TEST(Binding, AutoLeavesRanksAloneWhereAllCoresAreAlike) {
  NEED_HWLOC();
  const std::vector<int> all = {0, 1, 2, 3};
  for (const Machine& machine : {Machine{1, 1, 4, 1}, Machine{1, 1, 2, 2}}) {
    const Binding binding = choose_binding(request_of("auto", 1, {all, all}), tree_of(machine));
    EXPECT_THAT(binding.text, HasSubstr("share the same caches and memory")) << machine.text();
    EXPECT_TRUE(binding.cpus.empty());
    EXPECT_EQ(choose_binding(request_of("core", 1, {all, all}), tree_of(machine)).cpus.size(), 2u);
  }
  for (const Machine& machine : {Machine{2, 1, 2, 1}, Machine{1, 2, 2, 1}, Machine{2, 1, 1, 2}})
    EXPECT_EQ(choose_binding(request_of("auto", 1, {all, all}), tree_of(machine)).cpus.size(),
              machine.domains * machine.caches * machine.cores > 2 ? 2u : 0u)
        << machine.text();
}

TEST(Binding, CoreIsRefusedWhereItCannotBeHeld) {
  NEED_HWLOC();
  const CoreTree host = tree_of({1, 1, 4, 1});
  const std::vector<int> all = {0, 1, 2, 3};
  EXPECT_THAT(refusal_of(request_of("core", 1, {all, all, all, all, all}), host),
              HasSubstr("5 ranks share 4 cores"));
  EXPECT_THAT(refusal_of(request_of("core", 3, {all, all}), host),
              HasSubstr("a rank's share of the cores is 0-1, less than its 3 threads"));
  EXPECT_THAT(refusal_of(request_of("core", 1, {{0, 1, 2}, {2, 3}}), host),
              HasSubstr("part of each other's cores"));
}

TEST(Binding, WithoutHwlocNothingIsBoundAndItIsSaid) {
  const BindRequest automatic = request_of("auto", 1, {{0, 1}, {0, 1}});
  EXPECT_THAT(choose_binding(automatic, std::nullopt).text, HasSubstr("built without hwloc"));
  EXPECT_TRUE(choose_binding(automatic, std::nullopt).cpus.empty());
  EXPECT_THAT(refusal_of(request_of("core", 1, {{0, 1}, {0, 1}}), std::nullopt),
              HasSubstr("built without hwloc"));
}

}  // namespace
}  // namespace strait
