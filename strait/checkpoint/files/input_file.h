// A file opened for reading at any position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace strait::checkpoint {

/// Thread-safe: reads carry their own position. Errors: UserError when the file does not exist, is
/// a folder or ends early; InputOutputError when the system refuses it or fails to read. All name
/// the file.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  /// Size when the file was opened.
  int64_t bytes() const { return bytes_; }
  /// Fills `destination` from byte `offset` on.
  void read_at(int64_t offset, std::span<std::byte> destination) const;
  /// A part of the file and where it shall go.
  struct Part {
    int64_t offset = 0;
    std::span<std::byte> destination;
  };
  /// XXH3-128 of the whole file, streamed; fills the parts on the way, so that the file is read
  /// once. `parts` do not overlap and lie in the order of their offsets.
  std::string hash(const std::vector<Part>& parts = {}) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
};

}  // namespace strait::checkpoint
