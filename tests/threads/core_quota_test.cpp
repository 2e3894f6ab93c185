// Quotas read from trees of control groups as containers, batch systems and labs make them.
#include "strait/threads/core_quota.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace strait {
namespace {

namespace fs = std::filesystem;

class CoreQuotas : public testing::Test {
 protected:
  CoreQuotas() {
    std::string name = (fs::temp_directory_path() / "strait-quota-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~CoreQuotas() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const fs::path file = root_ + path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }
  void mount(const std::string& kind, const std::string& group, const std::string& folder,
             const std::string& options) {
    mounts_ += "30 24 0:26 " + group + " " + folder + " rw,nosuid shared:9 - " + kind + " cgroup " +
               options + "\n";
    write("/proc/self/mountinfo", mounts_);
  }
  CoreQuota quota() const { return core_quota(root_); }
  std::string root_;

 private:
  std::string mounts_ = "22 1 8:1 / / rw - ext4 /dev/sda rw\n";
};

TEST_F(CoreQuotas, WithoutAnyNothingIsLimited) {
  EXPECT_TRUE(std::isinf(quota().cores));
  mount("cgroup2", "/", "/sys/fs/cgroup", "rw");
  write("/proc/self/cgroup", "0::/user.slice");
  write("/sys/fs/cgroup/user.slice/cpu.max", "max 100000");
  EXPECT_TRUE(std::isinf(quota().cores));
  EXPECT_EQ(quota().group, "");
}

TEST_F(CoreQuotas, TheLeastOfAGroupAndThoseAroundIt) {
  mount("cgroup2", "/", "/sys/fs/cgroup", "rw");
  write("/proc/self/cgroup", "0::/batch/job/task");
  write("/sys/fs/cgroup/batch/cpu.max", "800000 100000");
  write("/sys/fs/cgroup/batch/job/cpu.max", "150000 100000");
  write("/sys/fs/cgroup/batch/job/task/cpu.max", "400000 100000");
  EXPECT_EQ(quota().cores, 1.5);
  const std::string job = quota().group;
  write("/proc/self/cgroup", "0::/batch/job/other");  // shares its limit with the task
  EXPECT_EQ(quota().group, job);
  write("/proc/self/cgroup", "0::/batch");
  EXPECT_EQ(quota().cores, 8);
  EXPECT_NE(quota().group, job);
}

TEST_F(CoreQuotas, OfVersionOneTheTreeOfTheCpuController) {
  mount("cgroup", "/", "/sys/fs/cgroup/memory", "rw,memory");
  mount("cgroup", "/", "/sys/fs/cgroup/cpu,cpuacct", "rw,cpu,cpuacct");
  mount("cgroup2", "/", "/sys/fs/cgroup/unified", "rw");
  write("/proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/lab/rank1\n0::/");
  write("/sys/fs/cgroup/cpu,cpuacct/lab/rank1/cpu.cfs_quota_us", "4000");
  write("/sys/fs/cgroup/cpu,cpuacct/lab/rank1/cpu.cfs_period_us", "8000");
  EXPECT_EQ(quota().cores, 0.5);
  write("/sys/fs/cgroup/cpu,cpuacct/lab/rank1/cpu.cfs_quota_us", "-1");
  EXPECT_TRUE(std::isinf(quota().cores));
}

TEST_F(CoreQuotas, OfAContainerTheMountIsItsGroup) {
  mount("cgroup2", "/docker/abc", "/sys/fs/cgroup", "rw");
  write("/sys/fs/cgroup/cpu.max", "200000 100000");
  write("/sys/fs/cgroup/inner/cpu.max", "max 100000");
  for (const char* seen : {"0::/docker/abc", "0::/", "0::/docker/abc/inner", "0::/other"}) {
    write("/proc/self/cgroup", seen);
    EXPECT_EQ(quota().cores, 2) << seen;
  }
}

}  // namespace
}  // namespace strait
