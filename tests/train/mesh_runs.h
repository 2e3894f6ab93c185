// What tests of the mesh share: runs that must equal one rank's.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/train/trained.h"

namespace strait::test {

class MeshRuns : public ::testing::Test {
 protected:
  std::string next_folder() { return folder_.path() + "/" + std::to_string(number_++); }

  /// In fp64: losses, validation and every tensor to 1e-9.
  static void expect_equal(const Trained& got, const Trained& want) {
    ASSERT_EQ(got.losses.size(), want.losses.size());
    for (size_t step = 0; step < want.losses.size(); ++step)
      ASSERT_NEAR(got.losses[step], want.losses[step], 1e-9 * want.losses[step]) << step;
    EXPECT_NEAR(got.validation, want.validation, 1e-9 * want.validation);
    EXPECT_LT(distance(got, want), 1e-9);
  }

  TemporaryFolder folder_;

 private:
  int number_ = 0;
};

}  // namespace strait::test
