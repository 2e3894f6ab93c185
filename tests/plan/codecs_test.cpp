// Codecs that plan adds to placements, against the same runs with codecs written by hand.
#include "strait/plan/codecs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "strait/config/parse.h"
#include "strait/config/print.h"
#include "strait/plan/codec_advice.h"
#include "strait/plan/search.h"
#include "strait/predict/predict.h"
#include "tests/plan/linked_pairs.h"

namespace strait::plan {
namespace {

using Sets = std::vector<std::string>;

/// Over links of `gb_per_second` between pairs.
Run linked(const std::string& gb_per_second, const Sets& sets) {
  Sets all = {"train.global_batch_size=16", "train.micro_batch_size=4"};
  all.insert(all.end(), sets.begin(), sets.end());
  return test::linked_pairs("gb_per_second = 100.0, latency_microseconds = 1.0",
                            "gb_per_second = " + gb_per_second + ", latency_microseconds = 1.0",
                            all);
}

SearchResult searched(const std::string& gb_per_second, const Sets& sets) {
  return search(linked(gb_per_second, sets), 4, 65);
}

const std::string kNarrow = "0.01", kWide = "100000.0";

/// Seconds of a step, by preset and the codecs that the plan has chosen.
std::map<std::pair<std::string, std::string>, double> times(const SearchResult& result) {
  std::map<std::pair<std::string, std::string>, double> found;
  for (const Candidate& one : result.candidates)
    found[{one.design.placement.preset, codecs_text(one.design.run)}] = one.simulated.seconds;
  return found;
}

TEST(PlannedCodecs, NarrowLinksTakeThem) {
  const SearchResult result = searched(kNarrow, {"plan.search=placement,codecs"});
  const auto seconds = times(result);
  const std::string gradients = "gradients int4/128";
  ASSERT_TRUE(seconds.contains({"ddp", gradients}));
  EXPECT_LT(seconds.at({"ddp", gradients}), 0.5 * seconds.at({"ddp", ""}));
  EXPECT_TRUE(seconds.contains({"zero1", gradients + ", update int8/2048"}));
  EXPECT_TRUE(seconds.contains({"zero3", "weights int8/2048, " + gradients}));
  EXPECT_TRUE(seconds.contains({"zero-topo", ""})) << "with the preset's own codecs";
  EXPECT_TRUE(compresses(result.candidates.front().design));
  EXPECT_EQ(result.enumerated, std::ssize(result.candidates));
}

/// A codec that the first candidate has is one that it needs.
TEST(PlannedCodecs, TheFirstIsNotWarnedOf) {
  for (const std::string rate : {"0.001", "0.01", "0.1", "1.0", "10.0"}) {
    const Candidate first = searched(rate, {"plan.search=placement,codecs"}).candidates.front();
    EXPECT_EQ(codec_advice(first.design, first.simulated.seconds), std::vector<std::string>())
        << rate << ": " << first.design.placement.describe();
  }
}

/// The run that is written is the one that was simulated.
TEST(PlannedCodecs, AreWritten) {
  for (const Candidate& one : searched(kNarrow, {"plan.search=placement,codecs"}).candidates) {
    const strategy::Design design =
        strategy::make_design(parse_run(print_run(one.design.run), "best.toml", {}), 4, 65);
    EXPECT_EQ(design.placement.describe(), one.design.placement.describe());
    EXPECT_EQ(predict::simulate(design).seconds, one.simulated.seconds);
  }
}

TEST(PlannedCodecs, WideLinksDoWithout) {
  for (const Candidate& one : searched(kWide, {"plan.search=placement,codecs"}).candidates)
    EXPECT_EQ(codecs_text(one.design.run), "") << one.design.placement.describe();
}

/// Stages alone send no gradients.
TEST(PlannedCodecs, WithOneDataRankThereAreNone) {
  const SearchResult result = searched(kNarrow, {"mesh.axes.stage=4"});
  ASSERT_FALSE(result.candidates.empty());
  for (const Candidate& one : result.candidates) {
    EXPECT_EQ(compressed_kinds(one.design), 0);
    EXPECT_TRUE(with_codecs(one.design).empty());
  }
}

TEST(PlannedCodecs, AreLeftOutWhereTheSearchDoesNotNameThem) {
  for (const std::string precision : {"fp32", "bf16"}) {
    const SearchResult result =
        searched(kNarrow, {"plan.search=placement", "train.precision=" + precision});
    std::vector<std::string> presets;
    for (const Candidate& one : result.candidates) {
      EXPECT_FALSE(compresses(one.design)) << one.design.placement.describe();
      presets.push_back(one.design.placement.preset);
    }
    for (const std::string preset : {"zero++", "zero-topo"})
      EXPECT_EQ(std::ranges::count(presets, preset), 1) << preset << " " << precision;
    EXPECT_EQ(result.enumerated, std::ssize(result.candidates));
  }
}

TEST(PlannedCodecs, OfTheFileAreKept) {
  const auto written = [](const Sets& sets) {
    std::map<std::string, std::string> placements;
    for (const Candidate& one : searched(kNarrow, sets).candidates)
      placements[one.design.placement.preset] = one.design.placement.describe();
    return placements;
  };
  const auto own = written({"plan.search=placement", "placement.preset=zero-topo"});
  EXPECT_NE(own.at("zero-topo").find("gradients in int4/128"), std::string::npos);
  EXPECT_NE(own.at("zero-topo").find("updates in int8/2048"), std::string::npos);
  for (const std::string search : {"placement", "placement,codecs"}) {
    const auto all = written({"plan.search=" + search, "placement.codecs.gradients=int8/64"});
    EXPECT_GE(all.size(), 6U);
    for (const auto& [preset, text] : all)
      EXPECT_NE(text.find("gradients in int8/64"), std::string::npos) << preset << ": " << text;
  }
}

/// Of two that are alike the one with fewer codecs comes first.
TEST(PlannedCodecs, OfEquallyFastOnesThoseWithFewerComeFirst) {
  const auto seconds = [](const Candidate& candidate) { return candidate.simulated.seconds; };
  bool both = false;
  for (const std::string rate : {"0.5", "1.0", "2.0", "4.0", "8.0", "16.0"}) {
    const SearchResult result = searched(rate, {"plan.search=placement,codecs"});
    const double fastest = seconds(*std::ranges::min_element(result.candidates, {}, seconds));
    std::vector<int64_t> alike;
    for (const Candidate& one : result.candidates)
      if (seconds(one) <= 1.01 * fastest) alike.push_back(compressed_kinds(one.design));
    EXPECT_TRUE(std::ranges::is_sorted(alike)) << rate;
    both = both || (alike.front() == 0 && alike.back() > 0);
  }
  EXPECT_TRUE(both) << "at no rate one that compresses is as fast as one that does not";
}

}  // namespace
}  // namespace strait::plan
