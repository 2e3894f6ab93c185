// A device or a backend that is not there: exit code 2, the key, and the nearest valid choice.
#include <gmock/gmock.h>

#include "strait/tensor/open_device.h"
#include "tests/app/program.h"

namespace strait {
namespace {

using ::testing::HasSubstr;

struct Refused {
  test::Ran ran;
  bool left_nothing = false;
};

Refused train(const std::vector<std::string>& sets) {
  const test::TemporaryFolder folder;
  const std::string run_file = folder.path() + "/run.toml", run_dir = folder.path() + "/run";
  std::ofstream(run_file) << "[data]\npath = \""
                          << test::write_text(folder.path(), test::small_text(500))
                          << "\"\n[model]\npreset = \"nano-char\"\n[train]\nsteps = 1\n"
                          << "[output]\nrun_dir = \"" << run_dir << "\"\n";
  std::vector<std::string> arguments = {"train", run_file};
  for (const std::string& set : sets) {
    arguments.push_back("--set");
    arguments.push_back(set);
  }
  Refused result{test::run(arguments, folder.path() + "/report.json")};
  result.left_nothing = !std::filesystem::exists(run_dir);
  return result;
}

TEST(Device, ThatIsNotThereNamesTheNearestValidChoice) {
  if (tensor::num_cuda_devices() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  const Refused refused = train({"runtime.device=cuda"});
  EXPECT_EQ(refused.ran.exit_code, 2);
  EXPECT_THAT(refused.ran.err, HasSubstr("CUDA"));
  EXPECT_THAT(refused.ran.err, HasSubstr("nearest valid choice is \"cpu\""));
  const Json& error = refused.ran.report.at("error");
  EXPECT_EQ(error.at("key").as_string(), "runtime.device");
  EXPECT_TRUE(refused.left_nothing);
}

TEST(Device, OfAnUnknownKindIsRefusedByTheRunFile) {
  const Refused refused = train({"runtime.device=cud"});
  EXPECT_EQ(refused.ran.exit_code, 2);
  EXPECT_THAT(refused.ran.err, HasSubstr("nearest valid value is \"cuda\""));
  EXPECT_TRUE(refused.left_nothing);
}

}  // namespace
}  // namespace strait
