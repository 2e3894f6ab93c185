// LibTorch's part of the program is loaded where it is called, and named where it is not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/app/program.h"

namespace strait {
namespace {

using test::Child;
using test::TemporaryFolder;
using ::testing::HasSubstr;

/// Files that a process maps, while it trains.
std::string mapped_while_training(const std::string& folder, const std::string& example) {
  Child child({"train", test::in_source(example), "--set", "train.steps=100000", "--set",
               "output.run_dir=" + folder + "/run", "--set", "evaluation.every_steps=0", "--set",
               "data.path=" + (example.ends_with("unet.toml") ? "synthetic:images/size=16/colors=1"
                                                              : folder + "/text.txt")},
              folder + "/log");
  test::wait_for_step(child, folder + "/run");
  EXPECT_TRUE(child.running()) << read_file(folder + "/log");
  return read_file("/proc/" + std::to_string(child.pid()) + "/maps");
}

bool links_the_part() { return !std::filesystem::exists(test::in_build("libstrait_torch.so")); }

TEST(LibraryPart, IsLoadedWhereItIsCalled) {
  if (links_the_part()) GTEST_SKIP() << "built for CUDA, with LibTorch linked";
  const TemporaryFolder folder;
  test::write_text(folder.path(), test::small_text(20000));
  EXPECT_EQ(mapped_while_training(folder.path(), "examples/minimal.toml").find("libtorch"),
            std::string::npos);
  std::filesystem::remove_all(folder.path() + "/run");
  EXPECT_THAT(mapped_while_training(folder.path(), "examples/unet.toml"), HasSubstr("libtorch"));
}

TEST(LibraryPart, MissingItIsNamedAndAllElseRuns) {
  if (links_the_part()) GTEST_SKIP() << "built for CUDA, with LibTorch linked";
  const TemporaryFolder folder;
  const std::string program = folder.path() + "/strait", log = folder.path() + "/log";
  std::filesystem::copy_file(test::in_build("strait"), program);
  const std::string minimal = test::in_source("examples/minimal.toml"),
                    unet = test::in_source("examples/unet.toml");
  EXPECT_EQ(Child({"verify", minimal, "--ranks", "2"}, log, {}, program).wait(), 0)
      << read_file(log);
  EXPECT_EQ(
      Child({"train", unet, "--set", "output.run_dir=" + folder.path() + "/run"}, log, {}, program)
          .wait(),
      6);
  EXPECT_THAT(read_file(log), HasSubstr("libstrait_torch.so"));
}

}  // namespace
}  // namespace strait
