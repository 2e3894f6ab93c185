// A file as memory: pages are read when they are touched, and shared by all processes of a host.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace strait {

/// Read-only and thread-safe. The file must not shrink while it is mapped: the system ends a
/// process that touches a page behind the end (SIGBUS).
class MappedFile {
 public:
  /// UserError (key data.path) when the file is missing or a folder; InputOutputError when the
  /// system refuses to open or to map it. Cost: no reading.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {begin_, size_}; }

 private:
  std::string path_;
  const char* begin_ = nullptr;
  size_t size_ = 0;
};

}  // namespace strait
