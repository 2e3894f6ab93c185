#include "strait/threads/core_quota.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

namespace strait {
namespace {

/// A mounted tree of control groups that can limit processors.
struct Tree {
  bool unified = false;  // version 2
  std::string root;      // the group that stands at the mount point
  std::string folder;    // the mount point
};

bool has_word(const std::string& list, const std::string& word) {
  std::istringstream words(list);
  for (std::string one; std::getline(words, one, ',');)
    if (one == word) return true;
  return false;
}

std::vector<Tree> mounted_trees(const std::string& root) {
  std::vector<Tree> trees;
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const size_t border = line.find(" - ");
    if (border == std::string::npos) continue;
    std::istringstream left(line.substr(0, border)), right(line.substr(border + 3));
    std::string skipped, kind, options;
    Tree tree;
    left >> skipped >> skipped >> skipped >> tree.root >> tree.folder;
    right >> kind >> skipped >> options;
    tree.unified = kind == "cgroup2";
    if (tree.unified || (kind == "cgroup" && has_word(options, "cpu"))) trees.push_back(tree);
  }
  return trees;
}

/// The group of this process in the trees of a version; nothing where it has none.
std::optional<std::string> own_group(const std::string& root, bool unified) {
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (unified ? controllers.empty() : has_word(controllers, "cpu"))
      return line.substr(second + 1);
  }
  return {};
}

/// Cores that the group in `folder` may keep busy; nothing: as many as there are.
std::optional<double> limit_of(const std::string& folder, bool unified) {
  double quota = 0, period = 0;
  if (unified) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;  // "max 100000" is no number
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;  // -1: none
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  if (!(quota > 0 && period > 0)) return {};
  return quota / period;
}

/// Other mounts and other names of a folder give the same text.
std::string identity(const std::string& folder) {
  struct stat found = {};
  if (::stat(folder.c_str(), &found) != 0) return folder;
  return std::to_string(found.st_dev) + ":" + std::to_string(found.st_ino);
}

void limit_by(const Tree& tree, const std::string& root, CoreQuota& quota) {
  std::string below = own_group(root, tree.unified).value_or("/");
  // Of a container's mount the root is its own group, which /proc may name from outside.
  if (tree.root != "/")
    below = below.starts_with(tree.root) ? below.substr(tree.root.size()) : std::string();
  while (below.ends_with('/')) below.pop_back();
  for (;; below.resize(below.rfind('/'))) {
    const std::string folder = root + tree.folder + below;
    const std::optional<double> limit = limit_of(folder, tree.unified);
    if (limit && *limit < quota.cores) quota = {*limit, identity(folder)};
    if (below.empty()) return;
  }
}

}  // namespace

CoreQuota core_quota(const std::string& root) {
  CoreQuota quota;
  for (const Tree& tree : mounted_trees(root)) limit_by(tree, root, quota);
  return quota;
}

}  // namespace strait
