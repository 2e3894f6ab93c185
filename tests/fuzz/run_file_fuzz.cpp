// libFuzzer target for run files and cluster files. Corpus: tests/fuzz/corpus/run_file.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/run_file_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strait::try_run_file({reinterpret_cast<const char*>(data), size});
  return 0;
}
