#include "strait/base/work_folder.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>

#include "strait/base/errors.h"
#include "strait/base/file.h"

namespace strait {

WorkFolder::WorkFolder(const std::string& prefix) : path_(prefix + "XXXXXX") {
  if (::mkdtemp(path_.data()) != nullptr) return;
  const int error = errno;
  const std::string parent = std::filesystem::path(prefix).parent_path();
  ErrorPlace place;
  place.file = parent;
  throw InputOutputError(fmt::format("cannot make a folder in {}: {}", parent, errno_text(error)),
                         place);
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace strait
