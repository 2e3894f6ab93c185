// Replays the fuzz corpus of run files, and seeded mutations of it: nothing but UserError may come
// out.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "strait/base/file.h"
#include "strait/base/random.h"
#include "tests/fuzz/run_file_target.h"
#include "tests/paths.h"

namespace strait {
namespace {

std::vector<std::string> corpus() {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(test::in_source("tests/fuzz/corpus/run_file")))
    files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

/// One to eight edits: flip, insert, erase, or splice in a piece of another file.
std::string mutate(std::string bytes, const std::string& other, const RandomStream& random,
                   uint64_t& counter) {
  const auto below = [&](size_t bound) {
    return static_cast<size_t>(random.below(counter++, bound));
  };
  for (size_t edits = 1 + below(8); edits > 0; --edits) {
    const size_t at = below(bytes.size() + 1);
    const size_t kind = below(4);
    if (kind == 0 && at < bytes.size()) bytes[at] = static_cast<char>(below(256));
    if (kind == 1) bytes.insert(at, 1, "=.[]{}\"'\n#,0-e"[below(14)]);
    if (kind == 2) bytes.erase(at, below(4));
    if (kind == 3) bytes.insert(at, other.substr(below(other.size() + 1), below(40)));
  }
  return bytes;
}

TEST(RunFileCorpus, IsReplayed) {
  int accepted = 0;
  const std::vector<std::string> files = corpus();
  ASSERT_GE(files.size(), 150u);
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    EXPECT_NO_THROW(accepted += try_run_file(read_file(file)));
  }
  EXPECT_GE(accepted, 5);  // the corpus reaches beyond the parser
  EXPECT_LT(accepted, static_cast<int>(files.size()));
}

TEST(RunFileCorpus, MutationsOnlyEverRaiseUserError) {
  std::vector<std::string> texts;
  for (const std::string& file : corpus())
    if (std::filesystem::file_size(file) < 1000) texts.push_back(read_file(file));
  const RandomStream random(2, "mutations");
  uint64_t counter = 0;
  int accepted = 0;
  for (int trial = 0; trial < 6000; ++trial) {
    const std::string& text = texts[random.below(counter++, texts.size())];
    const std::string& other = texts[random.below(counter++, texts.size())];
    const std::string bytes = mutate(text, other, random, counter);
    ASSERT_NO_THROW(accepted += try_run_file(bytes)) << bytes;
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace strait
