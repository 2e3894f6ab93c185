// What the kernel says of a thread's cores, before, in and after a binding.
#include "strait/threads/cores.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <thread>
#include <utility>

#include "strait/base/errors.h"

namespace strait {
namespace {

TEST(Cores, RangesAsText) {
  EXPECT_EQ(core_ranges({}), "none");
  EXPECT_EQ(core_ranges({5}), "5");
  EXPECT_EQ(core_ranges({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

/// Nanoseconds of a turn as the kernel has it for the calling thread, and its nice value.
std::pair<uint64_t, int32_t> turn_of_this_thread() {
  std::array<uint64_t, 6> attributes = {};  // size, policy; flags; nice, priority; runtime; ...
  EXPECT_EQ(::syscall(SYS_sched_getattr, 0, attributes.data(), sizeof(attributes), 0), 0);
  return {attributes[3], static_cast<int32_t>(attributes[2] & 0xffffffff)};
}

TEST(Cores, ShortTurnsAreThoseOfTheThreadAlone) {
  utsname kernel = {};
  ASSERT_EQ(::uname(&kernel), 0);
  int major = 0, minor = 0;
  ASSERT_EQ(std::sscanf(kernel.release, "%d.%d", &major, &minor), 2);
  const bool has_turns = major > 6 || (major == 6 && minor >= 12);
  const auto before = turn_of_this_thread();
  std::thread([&] {
    take_short_turns();
    const auto [turn, nice] = turn_of_this_thread();
    if (has_turns) {
      EXPECT_EQ(turn, 100'000u);
    }
    EXPECT_EQ(nice, before.second);
  }).join();
  EXPECT_EQ(turn_of_this_thread(), before);
}

TEST(CoreBinding, HoldsForTheThreadAndWhatItStartsWhileItLives) {
  const std::vector<int> before = usable_cores(), one = {before.back()};
  {
    const CoreBinding binding(one);
    EXPECT_EQ(usable_cores(), one);
    EXPECT_EQ(cores_before_binding(), before);
    std::vector<int> heir, free;
    std::thread([&] { heir = usable_cores(); }).join();
    std::thread([&, cores = cores_before_binding()] {
      run_on(cores);
      free = usable_cores();
    }).join();
    EXPECT_EQ(heir, one);
    EXPECT_EQ(free, before);
  }
  EXPECT_EQ(usable_cores(), before);
  EXPECT_TRUE(cores_before_binding().empty());
}

TEST(CoreBinding, OfNoCoresBindsNothing) {
  const std::vector<int> before = usable_cores();
  const CoreBinding binding({});
  EXPECT_EQ(usable_cores(), before);
  EXPECT_TRUE(cores_before_binding().empty());
}

TEST(CoreBinding, CoresThatAreNotThereAreRefused) {
  const std::vector<int> before = usable_cores();
  EXPECT_THROW(CoreBinding({1023}), UserError);
  EXPECT_EQ(usable_cores(), before);
  run_on({1023});  // a thread that is let go stays where it is
  EXPECT_EQ(usable_cores(), before);
}

}  // namespace
}  // namespace strait
