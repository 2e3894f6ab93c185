// What multiplies bf16 and fp32 on processors of every kind, none of which has to be this one.
#include "strait/kernel/product_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "strait/base/errors.h"
#include "strait/kernel/onednn.h"

namespace strait::kernel {
namespace {

using enum NarrowProducts;
using ::testing::HasSubstr;

Multipliers amd() { return {true, TileAccess::kMissing, true, kPaired}; }
Multipliers intel() { return {true, TileAccess::kMissing, true, kWidened}; }
Multipliers intel_with_tiles() { return {true, TileAccess::kGranted, true, kWidened}; }
Multipliers old() { return {false, TileAccess::kMissing, false, kWidened}; }
Multipliers denied() { return {true, TileAccess::kDenied, true, kWidened}; }

/// Seconds by way; asking for one that is not listed fails the test.
ProductSeconds takes(const std::map<NarrowProducts, double>& seconds) {
  return [seconds](NarrowProducts products) {
    const auto found = seconds.find(products);
    if (found == seconds.end()) {
      ADD_FAILURE() << product_name(products) << " is not there and was timed";
      return 1.0;
    }
    return found->second;
  };
}

ProductSeconds never() {
  return [](NarrowProducts) {
    ADD_FAILURE() << "timed";
    return 1.0;
  };
}

std::string refusal(NarrowProducts asked, const Multipliers& has, Dtype type = Dtype::kBfloat16) {
  try {
    choose_products({asked, false, "runtime.products", type}, has, never());
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "runtime.products");
    return error.what();
  }
  ADD_FAILURE() << "accepted " << product_name(asked);
  return "";
}

TEST(ProductChoice, TheClearlyFastestIsTaken) {
  const auto chosen = [](const Multipliers& has, const std::map<NarrowProducts, double>& seconds) {
    return choose_products({}, has, takes(seconds)).products;
  };
  EXPECT_EQ(chosen(amd(), {{kWidened, 2}, {kPaired, 1}, {kOneDnn, 1}}), kPaired);
  EXPECT_EQ(chosen(amd(), {{kWidened, 2}, {kPaired, 1}, {kOneDnn, 0.95}}), kPaired);  // noise
  EXPECT_EQ(chosen(amd(), {{kWidened, 2}, {kPaired, 1}, {kOneDnn, 0.8}}), kOneDnn);
  EXPECT_EQ(chosen(intel(), {{kWidened, 1}, {kPaired, 2}, {kOneDnn, 2}}), kWidened);
  EXPECT_EQ(chosen(intel(), {{kWidened, 1}, {kPaired, 0.5}, {kOneDnn, 2}}), kPaired);
  EXPECT_EQ(choose_products({}, intel_with_tiles(), never()).products, kTiles);
  EXPECT_EQ(chosen(old(), {{kWidened, 1}}), kWidened);
}

TEST(ProductChoice, SaysWhatItWasMeasuredAgainst) {
  const auto seconds = takes({{kWidened, 2}, {kPaired, 1}, {kOneDnn, 1.25}});
  EXPECT_EQ(choose_products({}, amd(), seconds).reason,
            "measured on one core: 2.00 times widened, 1.25 times onednn");
  EXPECT_EQ(choose_products({}, old(), takes({{kWidened, 2}})).reason, "all that there is");
}

TEST(ProductChoice, DeterministicAndUnmeasuredGoByTheProcessor) {
  for (const bool deterministic : {true, false}) {
    const ProductRequest request{kAutomatic, deterministic, "runtime.products"};
    const ProductSeconds seconds = deterministic ? never() : ProductSeconds();
    EXPECT_EQ(choose_products(request, amd(), seconds).products, kPaired);
    EXPECT_EQ(choose_products(request, intel(), seconds).products, kWidened);
    EXPECT_EQ(choose_products(request, intel_with_tiles(), seconds).products, kTiles);
    EXPECT_EQ(choose_products(request, denied(), seconds).products, kWidened);
  }
}

TEST(ProductChoice, WhatIsAskedForIsTakenUnmeasured) {
  for (const NarrowProducts asked : {kWidened, kPaired, kTiles, kOneDnn}) {
    const ProductChoice choice =
        choose_products({asked, false, "runtime.products"}, intel_with_tiles(), never());
    EXPECT_EQ(choice.products, asked);
    EXPECT_EQ(choice.reason, "asked for");
  }
}

TEST(ProductChoice, WhatIsMissingIsRefusedWithWhatThereIs) {
  EXPECT_EQ(
      refusal(kTiles, amd()),
      "runtime.products = \"tiles\", but this processor has no matrix tiles for bf16; "
      "bf16 is multiplied by widened, paired, onednn here; the nearest valid choice is \"paired\"");
  EXPECT_THAT(refusal(kPaired, old()),
              HasSubstr("no AVX512_BF16; bf16 is multiplied by widened here; "
                        "the nearest valid choice is \"widened\""));
  EXPECT_THAT(refusal(kOneDnn, old()),
              HasSubstr(onednn_version().empty() ? "built without oneDNN"
                                                 : " has no bf16 products for this processor"));
}

ProductRequest wide(NarrowProducts asked = kAutomatic, bool deterministic = false) {
  return {asked, deterministic, "runtime.products", Dtype::kFloat32};
}

TEST(ProductChoice, Fp32GoesByVectorsUnlessAWayIsAskedFor) {
  for (const Multipliers& has : {amd(), intel(), old(), denied(), intel_with_tiles()}) {
    for (const bool deterministic : {true, false})
      EXPECT_EQ(choose_products(wide(kAutomatic, deterministic), has, never()).products,
                kAutomatic);
    EXPECT_EQ(choose_products(wide(kWidened), has, never()).products, kWidened);
  }
}

TEST(ProductChoice, Fp32TakesTheWaysOfFp32) {
  EXPECT_EQ(choose_products(wide(kSplit), intel_with_tiles(), never()).products, kSplit);
  EXPECT_EQ(refusal(kTiles, intel_with_tiles(), Dtype::kFloat32),
            "runtime.products = \"tiles\", but that does not multiply fp32; fp32 is multiplied by "
            "widened, split here; the nearest valid choice is \"widened\"");
  EXPECT_THAT(refusal(kPaired, amd(), Dtype::kFloat32), HasSubstr("does not multiply fp32"));
  EXPECT_THAT(refusal(kSplit, amd(), Dtype::kFloat32), HasSubstr("no matrix tiles for bf16; fp32"));
  EXPECT_THAT(refusal(kSplit, intel_with_tiles()), HasSubstr("does not multiply bf16"));
  const ProductChoice fallen = choose_products(wide(kSplit), denied(), never());
  EXPECT_EQ(fallen.products, kWidened);
  EXPECT_THAT(fallen.reason, HasSubstr("tiles were asked for, but the system denies"));
}

TEST(ProductChoice, DeniedTilesFallBackAndSaySo) {
  const ProductChoice asked =
      choose_products({kTiles, false, "runtime.products"}, denied(), never());
  EXPECT_EQ(asked.products, kWidened);
  EXPECT_THAT(asked.reason, HasSubstr("tiles were asked for, but the system denies"));
  const ProductChoice automatic =
      choose_products({}, denied(), takes({{kWidened, 1}, {kPaired, 2}, {kOneDnn, 2}}));
  EXPECT_EQ(automatic.products, kWidened);
  EXPECT_THAT(automatic.reason, HasSubstr("the system denies matrix tiles to this process"));
}

TEST(ProductChoice, NamesAreReadBack) {
  for (const std::string& name : product_names())
    EXPECT_EQ(product_name(product_named(name, "--products")), name);
  try {
    product_named("tile", "--products");
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "--products");
    EXPECT_THAT(error.what(), HasSubstr("the nearest is \"tiles\""));
  }
}

// This process: whatever it has is timed, multiplies, and can be asked for.
TEST(ProductChoice, OfThisProcess) {
  const Multipliers has = own_multipliers();
  EXPECT_EQ(has.usual, narrow_products());
  EXPECT_EQ(has.tiles, tile_access());
  const ProductSeconds seconds = measured_product_seconds();
  const ProductChoice choice = choose_products({}, has, seconds);
  EXPECT_NE(choice.products, kAutomatic);
  EXPECT_GT(seconds(choice.products), 0);
  EXPECT_EQ(seconds(choice.products), seconds(choice.products));
  const ProductChoice again =
      choose_products({choice.products, false, "runtime.products"}, has, nullptr);
  EXPECT_EQ(again.products, choice.products);
  EXPECT_EQ(choose_products(wide(), has, seconds).products, kAutomatic);
}

}  // namespace
}  // namespace strait::kernel
