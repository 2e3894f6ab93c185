#include "strait/checkpoint/files/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/files/hash.h"

namespace strait::checkpoint {
namespace {

// Large enough to amortise the call, small enough that the hash reads from the cache.
constexpr int64_t kHashChunkBytes = 1 << 20;
constexpr int64_t kReadAheadBytes = 8 << 20;

ErrorPlace at_file(const std::string& path) {
  ErrorPlace place;
  place.file = path;
  return place;
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // A FIFO without a writer would block here for ever.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) refuse_to_open(path_, errno);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw UserError(fmt::format("{} is a {}, not a file", path_, file_kind(status.st_mode)),
                    at_file(path_));
  }
  bytes_ = status.st_size;
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read_at(int64_t offset, std::span<std::byte> destination) const {
  while (!destination.empty()) {
    const ssize_t count = ::pread(descriptor_, destination.data(), destination.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw InputOutputError(fmt::format("cannot read {}: {}", path_, errno_text(errno)),
                             at_file(path_));
    if (count == 0)
      throw UserError(fmt::format("{} is truncated: it ends at byte {}, {} more are needed", path_,
                                  offset, destination.size()),
                      at_file(path_));
    offset += count;
    destination = destination.subspan(static_cast<size_t>(count));
  }
}

std::string InputFile::hash(const std::vector<Part>& parts) const {
  Hasher128 hasher;
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(kHashChunkBytes, bytes_)));
  int64_t offset = 0, ahead = 0;
  const auto take = [&](std::span<std::byte> memory) {
    // The disk shall work while this is hashed; only a hint.
    if (offset + kReadAheadBytes > ahead) {
      ::posix_fadvise(descriptor_, ahead, 2 * kReadAheadBytes, POSIX_FADV_WILLNEED);
      ahead += 2 * kReadAheadBytes;
    }
    read_at(offset, memory);
    hasher.update(memory);
    offset += static_cast<int64_t>(memory.size());
  };
  const auto skip_to = [&](int64_t end) {
    while (offset < end)
      take(std::span(chunk).first(static_cast<size_t>(std::min(kHashChunkBytes, end - offset))));
  };
  for (const Part& part : parts) {
    ensure(part.offset >= offset, "InputFile: the parts overlap");
    skip_to(part.offset);
    for (auto rest = part.destination; !rest.empty();) {
      const size_t count = std::min(rest.size(), static_cast<size_t>(kHashChunkBytes));
      take(rest.first(count));
      rest = rest.subspan(count);
    }
  }
  skip_to(bytes_);
  return hasher.hex();
}

}  // namespace strait::checkpoint
