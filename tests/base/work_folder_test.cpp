// Folders of a moment: distinct, gone with what they hold, refused by name.
#include "strait/base/work_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "strait/base/errors.h"

namespace strait {
namespace {

TEST(WorkFolderTest, FoldersAreDistinctAndGoWithWhatTheyHold) {
  std::string path;
  {
    const WorkFolder one(::testing::TempDir() + "/work-"), other(::testing::TempDir() + "/work-");
    path = one.path();
    EXPECT_NE(path, other.path());
    EXPECT_THAT(path, ::testing::HasSubstr("/work-"));
    std::filesystem::create_directories(path + "/inside");
    std::ofstream(path + "/inside/file") << "x";
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(WorkFolderTest, AFolderThatCannotBeMadeIsNamed) {
  try {
    const WorkFolder folder("/dev/null/work-");
    FAIL() << "made";
  } catch (const InputOutputError& error) {
    EXPECT_EQ(error.place().file, "/dev/null");
    EXPECT_THAT(error.what(), ::testing::HasSubstr("cannot make a folder in /dev/null: "));
  }
}

}  // namespace
}  // namespace strait
