// The writing half of safetensors.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/json.h"
#include "strait/checkpoint/files/hash.h"
#include "strait/checkpoint/files/safetensors.h"

namespace strait::checkpoint {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kAlignmentBytes = 64;
// Hashed, then written while still in the cache.
constexpr size_t kChunkBytes = 1 << 20;
constexpr int64_t kWritebackBytes = 8 << 20;

/// The file under a temporary name; removed again unless committed. Of several processes that write
/// one file at a time, all but one are refused. What a killed one left is written over.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path)
      : path_(std::move(path)), temporary_(path_ + ".partial") {
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0644);
    if (descriptor_ < 0) fail("create", errno);
    if (!owned()) {
      ::close(descriptor_);
      ErrorPlace place;
      place.file = path_;
      throw UserError(fmt::format("another process is writing {}", path_), place);
    }
    if (::ftruncate(descriptor_, 0) != 0) {
      const int error = errno;
      discard();
      fail("create", error);
    }
  }
  ~TemporaryFile() { discard(); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto chunk = bytes.first(std::min(bytes.size(), kChunkBytes));
      hasher_.update(chunk);
      write_all(chunk);
      bytes = bytes.subspan(chunk.size());
      if (bytes_ - begun_ >= kWritebackBytes) begin_writeback();
    }
  }
  WrittenFile commit() {
    if (::fsync(descriptor_) != 0) fail("sync", errno);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename to", errno);
    committed_ = true;
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (::close(descriptor) != 0) fail("close", errno);
    const std::string folder = std::filesystem::path(path_).parent_path().string();
    sync_path(folder.empty() ? "." : folder);
    return {bytes_, hasher_.hex()};
  }

 private:
  /// Whether this process alone has the file that stands at the temporary name.
  bool owned() const {
    struct stat own {
    }, there{};
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    return ::fstat(descriptor_, &own) == 0 && S_ISREG(own.st_mode) &&
           ::stat(temporary_.c_str(), &there) == 0 && own.st_ino == there.st_ino &&
           own.st_dev == there.st_dev;
  }
  void discard() {
    if (!committed_) ::unlink(temporary_.c_str());
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  void write_all(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("write", errno);
      bytes_ += count;
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }
  /// The disk shall work while the rest is hashed and copied; fsync at the end waits for it.
  void begin_writeback() {
#ifdef SYNC_FILE_RANGE_WRITE
    ::sync_file_range(descriptor_, begun_, bytes_ - begun_, SYNC_FILE_RANGE_WRITE);  // only a hint
#endif
    begun_ = bytes_;
  }
  [[noreturn]] void fail(const char* doing, int error_number) const {
    ErrorPlace place;
    place.file = path_;
    throw InputOutputError(fmt::format("cannot {} {}: {}", doing, path_, errno_text(error_number)),
                           place);
  }

  std::string path_, temporary_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
  int64_t begun_ = 0;  // bytes whose way to the disk has begun
  Hasher128 hasher_;
  bool committed_ = false;
};

void check_views(const std::vector<TensorView>& tensors) {
  std::set<std::string> names;
  for (const TensorView& tensor : tensors) {
    int64_t bytes = dtype_bytes(tensor.dtype);
    for (const int64_t dim : tensor.dims) bytes *= dim;
    if (bytes != static_cast<int64_t>(tensor.data.size()))
      throw InternalError(
          fmt::format("write_safetensors: tensor \"{}\" has {} bytes, its shape needs {}",
                      tensor.name, tensor.data.size(), bytes));
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second)
      throw InternalError(
          fmt::format("write_safetensors: the name \"{}\" stands twice", tensor.name));
  }
}

/// Header length and header, padded with spaces so that the data is aligned.
std::string header_text(const std::vector<TensorView>& tensors, const Metadata& metadata) {
  Json::Object header;
  if (!metadata.empty()) {
    Json strings = Json::object();
    for (const auto& [key, value] : metadata) strings[key] = value;
    header.emplace_back("__metadata__", std::move(strings));
  }
  int64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    const int64_t end = offset + static_cast<int64_t>(tensor.data.size());
    Json entry = Json::object({{"dtype", safetensors_dtype(tensor.dtype)}, {"shape", tensor.dims}});
    entry["data_offsets"] = Json(Json::Array{Json(offset), Json(end)});
    header.emplace_back(tensor.name, std::move(entry));
    offset = end;
  }
  // Members are appended one by one: Json's own look-up would make this quadratic.
  std::string text = "{";
  for (const auto& [name, value] : header)
    text += fmt::format("{}{}: {}", text.size() > 1 ? ", " : "", Json(name).dump(), value.dump());
  text += '}';
  while ((kLengthBytes + static_cast<int64_t>(text.size())) % kAlignmentBytes != 0) text += ' ';
  ensure(static_cast<int64_t>(text.size()) <= kMaximumHeaderBytes &&
             static_cast<int64_t>(header.size()) <= kMaximumHeaderMembers,
         "write_safetensors: too many tensors for one file");
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace

WrittenFile write_safetensors(const std::string& path, std::vector<TensorView> tensors,
                              const Metadata& metadata) {
  check_views(tensors);
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
  });
  TemporaryFile file(path);
  const std::string header = header_text(tensors, metadata);
  file.append(std::as_bytes(std::span(header)));
  for (const TensorView& tensor : tensors) file.append(tensor.data);
  return file.commit();
}

}  // namespace strait::checkpoint
