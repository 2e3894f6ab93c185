// Folders that the system refuses, though tests may run as root, whom it refuses nothing.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace strait::test {

/// While this lives, this process has no more rights to `path`, a file or folder, than `mode`
/// gives. It may enter the folders above, and write into the one above.
class Forbidden {
 public:
  explicit Forbidden(const std::string& path, mode_t mode = 0) {
    set_mode(path, mode);
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    set_mode(parent, 0777);
    for (auto above = parent.parent_path(); above.has_relative_path(); above = above.parent_path())
      if (!may_enter(above)) set_mode(above, 0711);
    if (root_ && ::seteuid(kNobody) != 0) throw std::runtime_error("seteuid failed");
  }
  ~Forbidden() {
    if (root_ && ::seteuid(0) != 0) ::_exit(1);  // what follows could not clean up
    for (const auto& [path, mode] : before_) ::chmod(path.c_str(), mode);
  }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;

 private:
  static mode_t mode_of(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) throw std::runtime_error("nothing at " + path);
    return status.st_mode & 07777;
  }
  bool may_enter(const std::string& path) const { return !root_ || (mode_of(path) & 1) != 0; }
  void set_mode(const std::string& path, mode_t mode) {
    before_.emplace_back(path, mode_of(path));
    ::chmod(path.c_str(), mode);
  }

  static constexpr uid_t kNobody = 65534;
  std::vector<std::pair<std::string, mode_t>> before_;
  bool root_ = ::geteuid() == 0;
};

}  // namespace strait::test
