// Sums of the ledger by operation, level and codec, and its rows in reports.
#include "strait/trace/ledger.h"

#include <gtest/gtest.h>

#include "strait/trace/level_json.h"

namespace strait {
namespace {

Ledger sample() {
  Ledger ledger;
  ledger.add({"all-gather", 1, "none", 100, 0, 1});
  ledger.add({"all-gather", 1, "none", 50, 4, 1});
  ledger.add({"all-gather", 0, "none", 7, 0, 1});
  ledger.add({"reduce-scatter", 1, "int4/512", 20, 2, 1});
  return ledger;
}

TEST(Ledger, AddsUpRowsByOperationLevelAndCodec) {
  const std::vector<Traffic> rows = sample().rows();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].level, 0);
  EXPECT_EQ(rows[1].payload_bytes, 150);
  EXPECT_EQ(rows[1].metadata_bytes, 4);
  EXPECT_EQ(rows[1].count, 2);
  EXPECT_EQ(rows[2].codec, "int4/512");
  EXPECT_EQ(sample().payload_bytes(1), 170);
  EXPECT_EQ(sample().metadata_bytes(1), 6);
  EXPECT_EQ(sample().payload_bytes(2), 0);
}

TEST(Ledger, TellsWhatCrossedANetwork) {
  Ledger ledger = sample();
  EXPECT_EQ(ledger.bytes(), 183);
  EXPECT_EQ(ledger.network_bytes(), 0);
  ledger.add_network(70);
  EXPECT_EQ(ledger.bytes(), 183);
  Ledger sum = sample();
  sum.merge(ledger);
  sum.merge(ledger);
  EXPECT_EQ(sum.network_bytes(), 140);
  sum.clear();
  EXPECT_EQ(sum.network_bytes(), 0);
}

/// Of what outlives its step, that of steps that are long over.
TEST(Ledger, TakesWhatHasEnded) {
  Ledger ledger;
  for (const int64_t step : {1, 2, 3}) {
    ledger.add({"send", 0, "none", 10 * step, 0, 1}, {step, false});
    ledger.add({"send", 0, "none", 100 * step, 0, 1}, {step, true});
  }
  ledger.add_network(7);
  ASSERT_EQ(ledger.rows().size(), 1U);
  EXPECT_EQ(ledger.rows().front().payload_bytes, 660);
  EXPECT_EQ(ledger.rows().front().count, 6);
  Ledger ended;
  ledger.take(2, 1, ended);
  EXPECT_EQ(ended.payload_bytes(0), 10 + 20 + 100);
  EXPECT_EQ(ended.network_bytes(), 7);
  EXPECT_EQ(ledger.payload_bytes(0), 30 + 200 + 300);
  Ledger later;
  ledger.take(3, 3, later);
  EXPECT_EQ(later.payload_bytes(0), 530);
  EXPECT_EQ(later.network_bytes(), 0);
  EXPECT_EQ(ledger.bytes(), 0);
}

TEST(Ledger, MergesAndClears) {
  Ledger sum = sample();
  sum.merge(sample());
  EXPECT_EQ(sum.payload_bytes(1), 340);
  EXPECT_EQ(sum.rows()[1].count, 4);
  sum.clear();
  EXPECT_TRUE(sum.rows().empty());
}

TEST(LevelJson, GivesEveryLevelPerStepInnermostFirst) {
  const Json levels = trace::levels_json(sample(), {"pair", "node", "world"}, 2);
  ASSERT_EQ(levels.size(), 3u);
  EXPECT_EQ(levels.as_array()[1].at("level").as_string(), "node");
  EXPECT_EQ(levels.as_array()[1].at("payload_bytes").as_integer(), 85);
  EXPECT_EQ(levels.as_array()[1].at("metadata_bytes").as_integer(), 3);
  EXPECT_EQ(levels.as_array()[2].at("payload_bytes").as_integer(), 0);
  const Json rows = trace::traffic_json(sample(), {"pair", "node", "world"}, 1);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows.as_array()[2].at("codec").as_string(), "int4/512");
  EXPECT_EQ(rows.as_array()[2].at("operation").as_string(), "reduce-scatter");
  EXPECT_EQ(rows.as_array()[2].at("count").as_integer(), 1);
}

}  // namespace
}  // namespace strait
