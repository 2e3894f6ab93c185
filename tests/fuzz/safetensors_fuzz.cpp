// libFuzzer target: any bytes are either refused with UserError or parsed into tensors that tile
// the data. Build: clang++ -std=c++20 -fsanitize=fuzzer,address -I. (this file) + strait/base and
// strait/checkpoint. The corpus in tests/fuzz/corpus/safetensors is replayed by tests/checkpoint.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "strait/base/errors.h"
#include "strait/checkpoint/files/safetensors.h"

namespace {

/// Stops the fuzzer; in the replaying test, ends the test program.
void check(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const strait::checkpoint::SafetensorsHeader header =
        strait::checkpoint::parse_safetensors(file, "input");
    check(header.data_offset >= 8 && header.data_offset <= static_cast<int64_t>(size));
    int64_t position = 0;
    for (const auto& tensor : header.tensors) {
      check(tensor.begin == position && tensor.end >= tensor.begin);
      __int128 bytes = strait::dtype_bytes(tensor.dtype);
      for (const int64_t dim : tensor.dims) {
        check(dim >= 0);
        bytes *= dim;
        if (bytes == 0) break;
        check(bytes <= static_cast<__int128>(size) || tensor.begin == tensor.end);
      }
      position = tensor.end;
    }
    check(header.data_offset + position == static_cast<int64_t>(size));
  } catch (const strait::UserError&) {
    // Refused, as it should be. Anything else ends the program.
  }
  return 0;
}
