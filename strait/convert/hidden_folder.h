// A folder that is written under a hidden name and gets its own when it is whole.
#pragma once

#include <filesystem>
#include <string>

namespace strait::convert {

/// "out" of "out/" and of "./out": the last part is a name where there is one.
std::filesystem::path without_slash(const std::filesystem::path& path);

/// For the folder `target` ("out" or "out/"), which must not exist: .out.partial beside it, empty,
/// and of this process alone as long as the object lives. What a killed process left there is
/// removed; what is not published is removed by the destructor. UserError when another process is
/// writing `target`; InputOutputError when the system fails.
class HiddenFolder {
 public:
  explicit HiddenFolder(const std::string& target);
  ~HiddenFolder();
  HiddenFolder(const HiddenFolder&) = delete;
  HiddenFolder& operator=(const HiddenFolder&) = delete;

  std::string path() const { return hidden_.string(); }
  /// Renames it to `target`. InputOutputError when that fails.
  void publish();

 private:
  std::filesystem::path target_, hidden_;
  int descriptor_ = -1;
  bool published_ = false;
};

}  // namespace strait::convert
