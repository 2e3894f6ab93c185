#include "strait/base/memory_need.h"

#include <fmt/format.h>

#include "strait/base/errors.h"

namespace strait {

void require_memory_bytes(const std::string& what, int64_t needs_bytes, int64_t has_bytes,
                          const std::string& hint) {
  if (needs_bytes <= has_bytes) return;
  constexpr double kGiga = 1e9;
  throw NothingFits(fmt::format("{} needs {:.4g} GB of memory and {:.4g} GB are there; {}", what,
                                static_cast<double>(needs_bytes) / kGiga,
                                static_cast<double>(has_bytes) / kGiga, hint));
}

}  // namespace strait
