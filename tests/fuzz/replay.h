// The stored inputs of a libFuzzer target, run without libFuzzer.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "strait/base/file.h"
#include "tests/paths.h"

namespace strait::testing {

using FuzzTarget = int (*)(const uint8_t*, size_t);

/// Runs every stored input, and every prefix of the short ones; returns how many inputs there were.
inline int replay(const std::string& name, FuzzTarget target) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(test::in_source("tests/fuzz/corpus/") + name)) {
    const std::string bytes = read_file(entry.path().string());
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    const size_t first = bytes.size() <= 300 ? 0 : bytes.size();
    for (size_t size = first; size <= bytes.size(); ++size)
      EXPECT_NO_THROW(target(data, size)) << entry.path() << ", the first " << size << " bytes";
    ++count;
  }
  return count;
}

}  // namespace strait::testing
