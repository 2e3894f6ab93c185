// A large file written piece by piece, which appears under its name when it is whole.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "strait/data/shards/tokens.h"

namespace strait {

/// Errors: InputOutputError naming the file. Without finish() nothing is left.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  void append(std::string_view bytes);
  /// Overwrites the beginning with `header`, syncs and renames.
  void finish(std::string_view header = {});

 private:
  void write_at(int64_t offset, std::string_view bytes);

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
};

/// Tokens as a file stores them. InternalError when one does not fit.
std::string stored_tokens(std::span<const int32_t> tokens, TokenType type);

}  // namespace strait
