// Parallel equals serial: every placement on every world ends with the weights and losses of one
// rank.
#include <gtest/gtest.h>

#include <set>

#include "tests/train/trained.h"

namespace strait {
namespace {

using test::distance;
using test::small_run;
using test::TemporaryFolder;
using test::train_small;
using test::Trained;
using test::trained;

// Sums in another order differ by a few units of 2^-53 per step; AdamW divides by sqrt(v), which
// keeps relative errors relative. 20 steps stay far below 1e-9 of a tensor's norm (DESIGN 6).
constexpr double kTolerance = 1e-9;

void expect_equal(const Trained& got, const Trained& want, const std::string& what) {
  ASSERT_EQ(got.losses.size(), want.losses.size()) << what;
  for (size_t step = 0; step < want.losses.size(); ++step)
    EXPECT_NEAR(got.losses[step], want.losses[step], kTolerance * want.losses[step])
        << what << " step " << step;
  EXPECT_NEAR(got.validation, want.validation, kTolerance * want.validation) << what;
  for (const auto& [unit, values] : want.units)
    EXPECT_LT(distance(got.units.at(unit), values), kTolerance) << what << " " << unit;
}

struct Variant {
  const char* name;
  std::vector<std::string> sets;
  std::vector<std::string> where_gathered = {};  // more, for placements that split weights
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
      {"plain", {}},
      {"accumulation, clipping", {"train.micro_batch_size=1", "train.clip_norm=0.3"}},
      {"recompute, dropout, untied",
       {"train.recompute=block", "model.shape.dropout=0.2", "model.shape.tied_head=false"}},
      {"recompute every second, no bias, prefetch 2",
       {"train.recompute=every:2", "model.shape.bias=false", "train.micro_batch_size=1"},
       {"placement.prefetch_units=2"}},
      {"no prefetch, sgd",
       {"optimizer.kind=sgd", "optimizer.learning_rate=0.05"},
       {"placement.prefetch_units=0"}},
      {"documents", {"data.document_separator=.\n", "model.shape.layers=1"}},
      {"llama, untied, recompute every second",
       {"model.family=llama", "model.shape.kv_heads=1", "model.shape.bias=false",
        "model.shape.tied_head=false", "train.recompute=every:2", "train.micro_batch_size=1"}},
      {"llama, dropout, documents",
       {"model.family=llama", "model.shape.heads=5", "model.shape.kv_heads=5",
        "model.shape.dropout=0.1", "data.document_separator=.\n", "model.shape.layers=1"}},
  };
  return all;
}

class Equality : public ::testing::TestWithParam<int> {};

TEST_P(Equality, EveryPlacementOnEveryWorldEqualsOneRank) {
  const Variant& variant = variants()[static_cast<size_t>(GetParam())];
  const TemporaryFolder folder;
  const auto run_of = [&](std::vector<std::string> more) {
    std::vector<std::string> sets = variant.sets;
    sets.insert(sets.end(), more.begin(), more.end());
    return small_run(folder.path(), sets);
  };
  const Trained serial = trained(run_of({"placement.preset=ddp"}), 1, folder.path() + "/serial");
  EXPECT_LT(serial.losses.back(), serial.losses.front()) << variant.name;
  for (const char* placement : {"ddp", "zero1", "zero2", "zero3", "hsdp", "mics"}) {
    for (const int64_t ranks : {1, 2, 3, 4, 8}) {
      const std::string what =
          std::string(variant.name) + ": " + placement + " on " + std::to_string(ranks);
      const std::string run_dir = folder.path() + "/" + placement + std::to_string(ranks);
      std::vector<std::string> sets = {std::string("placement.preset=") + placement};
      if (std::set<std::string>{"zero3", "hsdp", "mics"}.contains(placement))
        sets.insert(sets.end(), variant.where_gathered.begin(), variant.where_gathered.end());
      expect_equal(trained(run_of(sets), ranks, run_dir), serial, what);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, Equality, ::testing::Range(0, 8));

TEST(BitEquality, PlacementsThatKeepTheOrderOfSumsAgreeBitForBitInFp32) {
  const TemporaryFolder folder;
  for (const int64_t ranks : {2, 4}) {
    std::map<std::string, std::string> hashes;
    for (const char* placement : {"ddp", "zero1", "zero2", "zero3", "hsdp", "mics"}) {
      const strait::Run run =
          small_run(folder.path(), {"train.precision=fp32", "train.clip_norm=0.3",
                                    std::string("placement.preset=") + placement});
      hashes[placement] =
          train_small(run, ranks, folder.path() + "/" + placement + std::to_string(ranks))
              .parameter_hash;
    }
    EXPECT_EQ(hashes["ddp"], hashes["zero1"]) << ranks;
    EXPECT_EQ(hashes["ddp"], hashes["zero2"]) << ranks;
    EXPECT_EQ(hashes["ddp"], hashes["zero3"]) << ranks;
    EXPECT_EQ(hashes["hsdp"], hashes["mics"]) << ranks;  // one micro-step: the same two sums
    EXPECT_EQ(hashes["ddp"].size(), 32u);
  }
}

TEST(BitEquality, RecomputationChangesNoBit) {
  const TemporaryFolder folder;
  for (const std::string family : {"gpt2", "llama"}) {
    std::map<std::string, std::string> hashes;
    for (const std::string recompute : {"none", "block", "every:2"}) {
      const strait::Run run =
          small_run(folder.path(), {"train.precision=fp32", "model.family=" + family,
                                    "model.shape.dropout=0.1", "train.recompute=" + recompute});
      hashes[recompute] =
          train_small(run, 2, folder.path() + "/" + family + recompute).parameter_hash;
    }
    EXPECT_EQ(hashes["block"], hashes["none"]) << family;
    EXPECT_EQ(hashes["every:2"], hashes["none"]) << family;
  }
}

TEST(BitEquality, SameRunTwiceGivesTheSameHash) {
  const TemporaryFolder folder;
  const strait::Run run =
      small_run(folder.path(), {"train.precision=fp32", "model.shape.dropout=0.1"});
  EXPECT_EQ(train_small(run, 3, folder.path() + "/a").parameter_hash,
            train_small(run, 3, folder.path() + "/b").parameter_hash);
}

}  // namespace
}  // namespace strait
