// Replays the stored inputs of the libFuzzer targets of this folder, so that they are checked
// without clang.
#include "tests/fuzz/replay.h"

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

using strait::testing::replay;

TEST(FuzzCorpus, Text) { EXPECT_GE(replay("text", text_fuzz_one_input), 12); }

TEST(FuzzCorpus, TokenizerJson) {
  EXPECT_GE(replay("tokenizer_json", tokenizer_json_fuzz_one_input), 12);
}

TEST(FuzzCorpus, TokenFiles) { EXPECT_GE(replay("token_files", token_files_fuzz_one_input), 30); }

}  // namespace
