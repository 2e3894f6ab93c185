// How much processor time the control groups of this process allow it: containers and batch systems
// limit it so, beside or in place of binding to cores.
#pragma once

#include <limits>
#include <string>

namespace strait {

struct CoreQuota {
  double cores = std::numeric_limits<double>::infinity();  // that it may keep busy; > 0
  std::string group;  // whose processes share them, a name unique on this machine; "" without limit
};

/// The least of the process's group and those around it, by cpu.max (control groups of version 2)
/// or cpu.cfs_quota_us (version 1). `root` stands before /proc and the mount points. What cannot be
/// read limits nothing.
CoreQuota core_quota(const std::string& root = "");

}  // namespace strait
