// What the tests of both families of Hugging Face folders start from.
#pragma once

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "strait/base/errors.h"
#include "strait/convert/hugging_face.h"
#include "tests/convert/stored_model.h"

namespace strait::test {

/// The bound; logits of the fixtures reach 20, and fp32 keeps 7 digits.
inline constexpr double kLogitTolerance = 1e-4;

/// A folder of an independent implementation, with the logits that it computed, and room for
/// copies.
class HuggingFaceFixture : public ::testing::Test {
 protected:
  explicit HuggingFaceFixture(const std::string& stored)
      : stored_(stored), expected_(read_logits(stored + "/expected.safetensors")) {}

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  /// A copy that a test may change.
  std::string copy(const std::string& name = "hf") const {
    return copy_fixture(folder_.path(), name, stored_);
  }
  /// Logits of our model from a Hugging Face folder.
  Logits imported(const std::string& hf, const std::string& name) const {
    convert::convert(hf, path(name), "checkpoint");
    return compute_logits(path(name), expected_.tokens);
  }
  /// What is said of a folder that cannot be imported; nothing is left of the attempt.
  std::string refusal(const std::string& from) const {
    try {
      convert::convert(from, path("refused"), "checkpoint");
    } catch (const UserError& error) {
      EXPECT_TRUE(error.place().file) << error.what();
      EXPECT_FALSE(std::filesystem::exists(path("refused")));
      return error.what();
    }
    ADD_FAILURE() << "accepted";
    return "";
  }

  const std::string stored_;
  TemporaryFolder folder_;
  const Logits expected_;
};

}  // namespace strait::test
