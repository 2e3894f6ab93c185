#include "strait/data/shards/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "strait/base/errors.h"
#include "strait/base/file.h"

namespace strait {
namespace {

[[noreturn]] void fail(const char* doing, const std::string& path) {
  const int failure = errno;
  ErrorPlace place;
  place.file = path;
  throw InputOutputError(fmt::format("cannot {} {}: {}", doing, path, errno_text(failure)), place);
}

template <class T>
std::string stored(std::span<const int32_t> tokens) {
  std::string bytes(tokens.size() * sizeof(T), '\0');
  char* out = bytes.data();
  for (const int32_t token : tokens) {
    ensure(token >= 0 &&
               static_cast<int64_t>(token) <= static_cast<int64_t>(std::numeric_limits<T>::max()),
           "a token does not fit the type it shall be stored as");
    const T value = static_cast<T>(token);
    out = std::copy_n(reinterpret_cast<const char*>(&value), sizeof(T), out);
  }
  return bytes;
}

}  // namespace

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), temporary_(fmt::format("{}.tmp-{}", path_, ::getpid())) {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail("create", temporary_);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void OutputFile::write_at(int64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", temporary_);
    offset += count;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

void OutputFile::append(std::string_view bytes) {
  write_at(bytes_, bytes);
  bytes_ += static_cast<int64_t>(bytes.size());
}

void OutputFile::finish(std::string_view header) {
  write_at(0, header);
  if (::fsync(descriptor_) != 0) fail("sync", temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename", temporary_);
  ::close(descriptor_);
  descriptor_ = -1;
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  sync_path(folder.empty() ? "." : folder);
}

std::string stored_tokens(std::span<const int32_t> tokens, TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return stored<uint8_t>(tokens);
    case TokenType::kUint16:
      return stored<uint16_t>(tokens);
    case TokenType::kInt32:
      return stored<int32_t>(tokens);
    case TokenType::kUint32:
      return stored<uint32_t>(tokens);
    default:
      throw InternalError("this token type is read and never written");
  }
}

}  // namespace strait
