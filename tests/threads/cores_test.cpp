// What the kernel says of a thread's cores, before, in and after a binding.
#include "strait/threads/cores.h"

#include <gtest/gtest.h>

#include <thread>

#include "strait/base/errors.h"

namespace strait {
namespace {

TEST(Cores, RangesAsText) {
  EXPECT_EQ(core_ranges({}), "none");
  EXPECT_EQ(core_ranges({5}), "5");
  EXPECT_EQ(core_ranges({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
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
