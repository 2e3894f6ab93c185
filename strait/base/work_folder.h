// A folder for the files of a moment.
#pragma once

#include <string>

namespace strait {

/// A new folder, removed with what it holds at the end.
class WorkFolder {
 public:
  /// Makes `prefix` and six characters that no other folder has. InputOutputError where it cannot
  /// be made.
  explicit WorkFolder(const std::string& prefix);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace strait
