#include "strait/data/shards/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "strait/base/errors.h"
#include "strait/base/file.h"

namespace strait {

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  ErrorPlace place;
  place.file = path_;
  place.key = "data.path";
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) try {
      refuse_to_open(path_, errno);
    } catch (Error& error) {
      error.place() = place;
      throw;
    }
  struct stat status {};
  const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  size_ = regular ? static_cast<size_t>(status.st_size) : 0;
  void* mapped = size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0) : nullptr;
  const int failure = errno;
  ::close(descriptor);
  if (!regular)
    throw UserError(fmt::format("{} is a {}, not a file", path_, file_kind(status.st_mode)), place);
  if (mapped == MAP_FAILED)
    throw InputOutputError(fmt::format("cannot map {}: {}", path_, errno_text(failure)), place);
  begin_ = static_cast<const char*>(mapped);
}

MappedFile::~MappedFile() {
  if (size_ > 0) ::munmap(const_cast<char*>(begin_), size_);
}

}  // namespace strait
