// Whole runs whose fp32 products go in three parts of bf16 by matrix tiles, in plain C here.
#include <gtest/gtest.h>

#include "tests/train/trained.h"

namespace strait {
namespace {

using kernel::NarrowProducts;

class SplitProducts : public ::testing::TestWithParam<std::string> {
 protected:
  test::Trained train(const std::vector<std::string>& sets,
                      NarrowProducts products = NarrowProducts::kAutomatic, int64_t ranks = 1) {
    std::vector<std::string> all = {"model.preset=" + GetParam()};
    all.insert(all.end(), sets.begin(), sets.end());
    auto run = test::small_run(folder_.path(), all);
    run.runtime.chosen.products = products;
    return test::trained(run, ranks, folder_.path() + "/" + std::to_string(runs_++));
  }

  /// Of all weights, from those of fp64.
  static double error(const test::Trained& run, const test::Trained& exact) {
    double sum = 0;
    for (const auto& [unit, values] : exact.units)
      sum += test::distance(run.units.at(unit), values);
    return sum / static_cast<double>(exact.units.size());
  }

  test::TemporaryFolder folder_;
  int runs_ = 0;
};

TEST_P(SplitProducts, TrainAsCloseToFp64AsVectors) {
  const auto exact = train({}), vectors = train({"train.precision=fp32"});
  const auto split = train({"train.precision=fp32"}, NarrowProducts::kPlainTiles);
  EXPECT_NE(split.hash, vectors.hash) << "tells nothing apart";
  EXPECT_LT(error(split, exact), 3 * error(vectors, exact));  // 0.8 and 1.4 times
  EXPECT_NEAR(split.losses.back(), exact.losses.back(), 1e-5);
}

TEST_P(SplitProducts, GiveTheSameBitsUnderEveryPlacement) {
  const auto hash = [&](const std::string& placement) {
    return train({"train.precision=fp32", "placement.preset=" + placement},
                 NarrowProducts::kPlainTiles, 2)
        .hash;
  };
  EXPECT_EQ(hash("zero3"), hash("ddp"));
}

INSTANTIATE_TEST_SUITE_P(Families, SplitProducts, ::testing::Values("nano-char", "llama-10m"));

}  // namespace
}  // namespace strait
