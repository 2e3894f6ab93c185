#include "strait/base/provided.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "strait/base/errors.h"

namespace strait {
namespace {

constexpr const char* kPart = "libstrait_torch.so";

/// Where the part may lie, the likeliest first.
std::vector<std::filesystem::path> places() {
  std::error_code none;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", none);
  const std::filesystem::path folder = program.parent_path();
  return {folder / kPart, folder / STRAIT_PART_FOLDER / kPart};
}

}  // namespace

void load_library_part() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::filesystem::path found = kPart;  // where the loader looks itself
    for (const std::filesystem::path& place : places())
      if (std::error_code none; found == kPart && std::filesystem::exists(place, none))
        found = place;
    if (::dlopen(found.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return;
    const char* const reason = ::dlerror();
    throw InputOutputError("what needs LibTorch cannot be loaded: " +
                               std::string(reason ? reason : "no reason was given"),
                           {.file = found.string()});
  });
}

}  // namespace strait
