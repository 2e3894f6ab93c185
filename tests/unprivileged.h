// Folders that the system refuses, though tests may run as root, whom it refuses nothing.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace strait::test {

/// While this lives, this process may neither list nor enter `folder`, whose parent it may enter.
class Forbidden {
 public:
  explicit Forbidden(const std::string& folder, mode_t mode = 0) : folder_(folder) {
    parent_ = folder.substr(0, folder.rfind('/'));
    struct stat status {};
    if (::stat(parent_.c_str(), &status) != 0 || ::stat(folder_.c_str(), &before_) != 0)
      throw std::runtime_error("no folder " + folder_);
    parent_mode_ = status.st_mode;
    ::chmod(parent_.c_str(), 0777);
    ::chmod(folder_.c_str(), mode);
    if (root_ && ::seteuid(kNobody) != 0) throw std::runtime_error("seteuid failed");
  }
  ~Forbidden() {
    if (root_ && ::seteuid(0) != 0) ::_exit(1);  // what follows could not clean up
    ::chmod(folder_.c_str(), before_.st_mode);
    ::chmod(parent_.c_str(), parent_mode_);
  }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  std::string folder_, parent_;
  struct stat before_ {};
  mode_t parent_mode_ = 0;
  bool root_ = ::geteuid() == 0;
};

}  // namespace strait::test
