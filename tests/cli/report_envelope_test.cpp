// What is found out about a report's place before a long command begins.
#include "strait/cli/report_envelope.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "strait/base/errors.h"

namespace strait::cli {
namespace {

TEST(ReportFolder, HasToBeThereOrMadeByTheCommand) {
  const std::string folder = std::filesystem::temp_directory_path().string();
  const std::string missing = folder + "/no-such-folder";
  for (const std::string& path : {std::string("-"), std::string(), folder + "/report.json"})
    EXPECT_NO_THROW(require_folder_of(path)) << path;
  EXPECT_THROW(require_folder_of(missing + "/report.json"), InputOutputError);
  EXPECT_THROW(require_folder_of(folder), InputOutputError);
  for (const std::string& made : {missing, missing + "/", folder + "/./no-such-folder"})
    EXPECT_NO_THROW(require_folder_of(missing + "/report.json", made)) << made;
  EXPECT_THROW(require_folder_of(missing + "/deeper/report.json", missing), InputOutputError);
}

}  // namespace
}  // namespace strait::cli
