// Replays the stored inputs of the libFuzzer targets of this folder, so that they are checked
// without clang.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "strait/base/file.h"

#define LLVMFuzzerTestOneInput text_fuzz_one_input
#include "tests/fuzz/text_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput tokenizer_json_fuzz_one_input
#include "tests/fuzz/tokenizer_json_fuzz.cpp"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput token_files_fuzz_one_input
#include "tests/fuzz/token_files_fuzz.cpp"
#undef LLVMFuzzerTestOneInput

namespace {

using FuzzTarget = int (*)(const uint8_t*, size_t);

/// Runs every stored input, and every prefix of the short ones; returns how many inputs there were.
int replay(const std::string& name, FuzzTarget target) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(STRAIT_SOURCE_DIR "/tests/fuzz/corpus/" + name)) {
    const std::string bytes = strait::read_file(entry.path().string());
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    const size_t first = bytes.size() <= 300 ? 0 : bytes.size();
    for (size_t size = first; size <= bytes.size(); ++size)
      EXPECT_NO_THROW(target(data, size)) << entry.path() << ", the first " << size << " bytes";
    ++count;
  }
  return count;
}

TEST(FuzzCorpus, Text) { EXPECT_GE(replay("text", text_fuzz_one_input), 12); }

TEST(FuzzCorpus, TokenizerJson) {
  EXPECT_GE(replay("tokenizer_json", tokenizer_json_fuzz_one_input), 12);
}

TEST(FuzzCorpus, TokenFiles) { EXPECT_GE(replay("token_files", token_files_fuzz_one_input), 30); }

}  // namespace
