// Replays the fuzz corpus: valid-* must parse, bad-* must be refused, and the fuzz target's checks
// hold.
#include <gtest/gtest.h>

#include <filesystem>

#include "strait/base/file.h"
#include "tests/fuzz/safetensors_fuzz.cpp"
#include "tests/paths.h"

namespace {

TEST(SafetensorsCorpus, Replays) {
  const std::filesystem::path folder = strait::test::in_source("tests/fuzz/corpus/safetensors");
  int valid = 0, bad = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    SCOPED_TRACE(name);
    const std::string contents = strait::read_file(entry.path().string());
    EXPECT_EQ(
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(contents.data()), contents.size()),
        0);
    if (name.starts_with("valid-")) {
      ++valid;
      EXPECT_NO_THROW(strait::checkpoint::parse_safetensors(contents, name));
    } else {
      ++bad;
      ASSERT_TRUE(name.starts_with("bad-"));
      EXPECT_THROW(strait::checkpoint::parse_safetensors(contents, name), strait::UserError);
    }
  }
  EXPECT_GE(valid, 5);
  EXPECT_GE(bad, 20);
}

}  // namespace
