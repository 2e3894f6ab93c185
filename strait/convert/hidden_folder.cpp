#include "strait/convert/hidden_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "strait/base/errors.h"

namespace strait::convert {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::error_code& error) {
  throw InputOutputError(fmt::format("cannot create {}: {}", path.string(), error.message()));
}

}  // namespace

fs::path without_slash(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

HiddenFolder::HiddenFolder(const std::string& target)
    : target_(without_slash(target)),
      hidden_(target_.parent_path() / fmt::format(".{}.partial", target_.filename().string())) {
  std::error_code error;
  fs::create_directories(hidden_, error);
  if (error) fail(hidden_, error);
  descriptor_ = ::open(hidden_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0 || (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw UserError(fmt::format("another process is writing {}", target));
  }
  for (const auto& entry : fs::directory_iterator(hidden_, error))  // of one that was killed
    fs::remove_all(entry.path(), error);
}

HiddenFolder::~HiddenFolder() {
  std::error_code ignored;
  if (!published_) fs::remove_all(hidden_, ignored);
  ::close(descriptor_);
}

void HiddenFolder::publish() {
  std::error_code error;
  fs::rename(hidden_, target_, error);
  if (error) fail(target_, error);
  published_ = true;
}

}  // namespace strait::convert
