// libFuzzer target: any bytes as the manifest of a checkpoint. What is accepted is written and read
// back alike; its shards are checked.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "strait/base/errors.h"
#include "strait/checkpoint/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strait::checkpoint;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    const Manifest manifest = parse_manifest(bytes, "fuzz");
    const std::string written = manifest_text(manifest);
    if (manifest_text(parse_manifest(written, "again")) != written)
      throw std::logic_error("a manifest changes when it is written");
    check_shards(manifest);
    require_full_coverage(manifest, "fuzz");
  } catch (const strait::UserError&) {
    // refused, as bad input should be
  }
  return 0;
}
