// What multiplies bf16, from the run file and the command line to the report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/kernel/product_choice.h"
#include "tests/app/program.h"

namespace strait {
namespace {

using kernel::NarrowProducts;
using test::run;
using ::testing::HasSubstr;

class Products : public ::testing::Test {
 protected:
  Products() : file_(test::small_run_file(folder_.path())) {}

  test::Ran train(const std::string& precision, const std::vector<std::string>& sets) {
    std::vector<std::string> all = {
        "train", file_,
        "--set", "train.steps=2",
        "--set", "train.precision=" + precision,
        "--set", "output.run_dir=" + folder_.path() + "/run" + std::to_string(runs_++)};
    for (const std::string& set : sets) all.insert(all.end(), {"--set", set});
    return run(all, folder_.path() + "/train" + std::to_string(runs_) + ".json");
  }

  test::TemporaryFolder folder_;
  std::string file_;
  int runs_ = 0;
};

TEST_F(Products, TheReportAndTheFirstLinesNameThem) {
  const auto forced = train("bf16", {"runtime.products=widened"});
  ASSERT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_EQ(forced.report.at("products").as_string(), "widened");
  EXPECT_EQ(forced.report.at("products_reason").as_string(), "asked for");
  EXPECT_THAT(forced.out, HasSubstr("products    bf16 by widened: asked for"));
  const auto chosen = train("bf16", {});
  ASSERT_EQ(chosen.exit_code, 0) << chosen.err;
  EXPECT_TRUE(kernel::can_multiply(
      kernel::own_multipliers(),
      kernel::product_named(chosen.report.at("products").as_string(), "products")));
  // What was measured belongs to this machine: the resolved run file keeps what was asked for.
  const std::string file = chosen.report.at("run_dir").as_string() + "/run.toml";
  EXPECT_THAT(read_file(file), HasSubstr("products = \"auto\""));
  EXPECT_TRUE(train("fp32", {}).report.at("products").is_null());
}

TEST_F(Products, DeterministicRunsDoNotMeasure) {
  const auto ran = train("bf16", {"runtime.deterministic=true"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.report.at("products_reason").as_string(), HasSubstr("not by measurements"));
}

TEST_F(Products, WhatTheProcessorLacksIsRefusedBeforeTheRun) {
  const kernel::Multipliers has = kernel::own_multipliers();
  for (const NarrowProducts products :
       {NarrowProducts::kPaired, NarrowProducts::kTiles, NarrowProducts::kOneDnn}) {
    const std::string name = kernel::product_name(products);
    const auto trained = train("bf16", {"runtime.products=" + name});
    const auto benched = run({"bench", "gemm", "--m", "8", "--n", "8", "--k", "8", "--dtype",
                              "bf16", "--products", name},
                             folder_.path() + "/gemm.json");
    const bool denied =
        products == NarrowProducts::kTiles && has.tiles == kernel::TileAccess::kDenied;
    if (kernel::can_multiply(has, products)) {
      EXPECT_EQ(trained.exit_code, 0) << name << trained.err;
      EXPECT_EQ(trained.report.at("products").as_string(), name);
      EXPECT_EQ(benched.report.at("rows").as_array().at(0).at("case").at("products").as_string(),
                name);
    } else if (!denied) {
      for (const test::Ran* ran : {&trained, &benched}) {
        EXPECT_EQ(ran->exit_code, 2) << name;
        EXPECT_THAT(ran->err, HasSubstr("the nearest valid choice is"));
        EXPECT_THAT(ran->err, HasSubstr("bf16 is multiplied by widened"));
      }
    }
  }
}

TEST_F(Products, Fp32HasWaysOfItsOwn) {
  const auto vectors = train("fp32", {"runtime.products=widened"});
  ASSERT_EQ(vectors.exit_code, 0) << vectors.err;
  EXPECT_EQ(vectors.report.at("products").as_string(), "widened");
  EXPECT_THAT(vectors.out, HasSubstr("products    fp32 by widened: asked for"));
  const auto split = train("fp32", {"runtime.products=split"});
  if (kernel::own_multipliers().tiles == kernel::TileAccess::kMissing) {
    EXPECT_EQ(split.exit_code, 2);
    EXPECT_THAT(split.err, HasSubstr("this processor has no matrix tiles for bf16; fp32 is "
                                     "multiplied by widened here"));
  } else {
    EXPECT_EQ(split.exit_code, 0) << split.err;
  }
}

TEST_F(Products, AWayTakesEffectOnlyOnItsType) {
  const auto benched = [&](const std::string& dtype, const std::string& products) {
    return run({"bench", "gemm", "--m", "8", "--dtype", dtype, "--products", products});
  };
  for (const auto& [dtype, products] : std::vector<std::pair<std::string, std::string>>{
           {"fp32", "paired"}, {"fp64", "widened"}, {"bf16", "split"}}) {
    const auto ran = benched(dtype, products);
    EXPECT_EQ(ran.exit_code, 2) << dtype;
    EXPECT_THAT(ran.err, HasSubstr("--products " + products +
                                   " cannot take effect: that does not multiply " + dtype));
    const auto trained = train(dtype, {"runtime.products=" + products});
    EXPECT_EQ(trained.exit_code, 2) << dtype;
    EXPECT_THAT(trained.err, HasSubstr("that does not multiply"));
  }
}

}  // namespace
}  // namespace strait
