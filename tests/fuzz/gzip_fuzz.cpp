// libFuzzer target: any bytes as gzip, whole and in pieces, under a limit that bombs exceed.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "strait/base/errors.h"
#include "strait/data/gzip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMostBytes = 320 << 10;  // more than one piece has; more only costs time
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const std::string whole = strait::gunzip(bytes, "fuzz", kMostBytes);
    if (static_cast<int64_t>(whole.size()) > kMostBytes)
      throw std::logic_error("more is unpacked than the limit allows");
    std::string pieces;
    strait::gunzip_chunks(bytes, "fuzz", [&](std::string_view chunk) {
      pieces += chunk;
      return true;
    });
    if (pieces != whole) throw std::logic_error("pieces differ from the whole");
  } catch (const strait::UserError&) {
    // refused, as damaged data should be
  }
  return 0;
}
