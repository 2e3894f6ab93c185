#include "strait/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "strait/base/errors.h"

namespace strait {
namespace {

[[noreturn]] void fail(const char* doing, const std::string& path, int error_number) {
  ErrorPlace place;
  place.file = path;
  throw InputOutputError(fmt::format("{} {}: {}", doing, path, errno_text(error_number)), place);
}

/// Whether an errno says that no such path is there.
bool means_nothing_there(int error_number) {
  return error_number == ENOENT || error_number == ENOTDIR || error_number == ELOOP ||
         error_number == ENAMETOOLONG || error_number == ENXIO;
}

/// st_mode, 0 where nothing is there.
unsigned mode_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return status.st_mode;
  if (!means_nothing_there(errno)) fail("cannot open", path, errno);
  return 0;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

void write_all(int fd, std::string_view contents, const std::string& path) {
  while (!contents.empty()) {
    const ssize_t written = ::write(fd, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write", path, errno);
    contents.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

std::string errno_text(int error_number) { return std::generic_category().message(error_number); }

const char* file_kind(unsigned mode) {
  if (S_ISREG(mode)) return "file";
  if (S_ISDIR(mode)) return "folder";
  if (S_ISFIFO(mode)) return "FIFO";
  if (S_ISSOCK(mode)) return "socket";
  return S_ISBLK(mode) || S_ISCHR(mode) ? "device" : "special file";
}

bool path_exists(const std::string& path) { return mode_of(path) != 0; }

bool is_folder(const std::string& path) { return S_ISDIR(mode_of(path)); }

bool is_regular_file(const std::string& path) { return S_ISREG(mode_of(path)); }

void refuse_to_open(const std::string& path, int error_number) {
  if (!means_nothing_there(error_number)) fail("cannot open", path, error_number);
  ErrorPlace place;
  place.file = path;
  throw UserError(fmt::format("cannot open {}: {}", path, errno_text(error_number)), place);
}

std::string read_file(const std::string& path) {
  // A FIFO without a writer would block here for ever.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) refuse_to_open(path, errno);
  ErrorPlace place;
  place.file = path;
  struct stat status {};
  if (::fstat(file.get(), &status) == 0 && !S_ISREG(status.st_mode))
    throw UserError(fmt::format("{} is a {}, not a file", path, file_kind(status.st_mode)), place);
  std::string contents;
  if (status.st_size > 0) contents.reserve(static_cast<size_t>(status.st_size));
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = ::read(file.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot read", path, errno);
    if (count == 0) return contents;
    contents.append(buffer, static_cast<size_t>(count));
  }
}

void sync_path(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail("cannot open", path, errno);
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail("cannot sync", path, errno);
}

namespace {

/// The file that `path` leads to through links. A rename would replace a link, such as /dev/stdout,
/// and whatever special file stands there.
std::string target_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ELOOP) fail("cannot write", path, errno);
    return path;
  }
  if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
    ErrorPlace place;
    place.file = path;
    throw UserError(fmt::format("{} is a {}, not a file", path, file_kind(status.st_mode)), place);
  }
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  const std::string target = std::filesystem::canonical(path, error).string();
  if (error) fail("cannot write", path, error.value());
  return target;
}

}  // namespace

void write_file_atomically(const std::string& named, std::string_view contents) {
  const std::string path = target_of(named);
  const std::string temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  try {
    const Descriptor file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (file.get() < 0) fail("cannot create", path, errno);
    write_all(file.get(), contents, path);
    if (::fsync(file.get()) != 0) fail("cannot sync", path, errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail("cannot rename to", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const size_t slash = path.rfind('/');
  sync_path(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

}  // namespace strait
