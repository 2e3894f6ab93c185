// A folder that lives as long as a test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "strait/base/file.h"

namespace strait::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() / ("strait-" + std::to_string(::getpid()) + "-" +
                                                      test->test_suite_name() + "-" + test->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string at(const std::string& name) const { return (path_ / name).string(); }

  /// Writes a file, and the folders above it; returns its path.
  std::string write(const std::string& name, std::string_view contents) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    write_file_atomically(at(name), contents);
    return at(name);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace strait::testing
