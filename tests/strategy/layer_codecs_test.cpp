// Which layers compression.codec encodes, and where it is refused.
#include "strait/strategy/sharding/layer_codecs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/config/parse.h"
#include "strait/cost/cost.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/design.h"
#include "strait/strategy/sharding/low_rank.h"

namespace strait::strategy {
namespace {

using ::testing::HasSubstr;

Design designed(std::vector<std::string> sets, int64_t ranks = 4) {
  const std::string text =
      "[model]\npreset = \"nano-char\"\n[train]\nglobal_batch_size = 24\n"
      "[placement]\npreset = \"ddp\"\n[compression]\ncodec = \"qsgd4/64\"\n";
  return make_design(parse_run(text, "test.toml", sets), ranks, 65, 4);
}

std::string refusal(const std::vector<std::string>& sets) {
  try {
    designed(sets);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

// A block of nanoGPT's CPU model: norms of 128, matrices of 3 x 128 x 128, 128 x 128 and twice
// 4 x 128 x 128, all matrices first.
TEST(LayerCodecs, EveryMatrixStandsAlone) {
  const Design design = designed({});
  ASSERT_EQ(design.placement.layers.size(), design.shape.units.size());
  const UnitShape& block = design.shape.units[1];
  std::vector<int64_t> large;
  int64_t small = 0, all = 0;
  for (const codec::Run& run : design.placement.layers[1].runs) {
    (run.codec == codec::parse_codec("qsgd4/64") ? large.emplace_back(run.elements)
                                                 : small += run.elements);
    all += run.elements;
  }
  EXPECT_EQ(large, (std::vector<int64_t>{49152, 16384, 65536, 65536}));
  EXPECT_EQ(all, block.elements);
  EXPECT_EQ(small, 2 * 128);
  EXPECT_EQ(design.placement.layers[1].parts, 4);
}

TEST(LayerCodecs, WhatIsSmallIsSentAsItIs) {
  const Design design = designed({"compression.skip_below_elements=16385"});
  int64_t small = 0;
  for (const codec::Run& run : design.placement.layers[1].runs)
    if (run.codec == codec::CodecSpec()) small += run.elements;
  EXPECT_EQ(small, 16384 + 2 * 128);
}

/// Payload and scales of what moves in layers' codecs.
std::pair<int64_t, int64_t> bytes_of(const Ledger& ledger) {
  std::pair<int64_t, int64_t> bytes;
  for (const Traffic& row : ledger.rows())
    if (codec::is_runs(row.codec)) {
      bytes.first += row.payload_bytes;
      bytes.second += row.metadata_bytes;
    }
  return bytes;
}

// Each rank sends n - 1 pieces of others' parts, and n - 1 times its own; all cut by hand.
TEST(LayerCodecs, SimulatorAndCostCountTheBytesOfTheClosedForm) {
  for (const int64_t n : {2, 3, 4}) {
    const Design design = designed({}, n);
    int64_t payload = 0, scales = 0;
    for (const codec::Runs& runs : design.placement.layers)
      for (const codec::Run& run : runs.runs) {
        const int64_t grain = (run.elements + n - 1) / n;
        const bool plain = run.codec == codec::CodecSpec();
        payload += plain ? 4 * grain : (grain * 4 + 63) / 64 * 8;
        scales += plain ? 0 : (grain + 63) / 64 * 8;
      }
    const std::pair<int64_t, int64_t> want = {2 * n * (n - 1) * payload, 2 * n * (n - 1) * scales};
    const program::Program& step = design.steady().front();
    EXPECT_EQ(bytes_of(sim::simulate(step, design.cluster).traffic), want) << n;
    EXPECT_EQ(bytes_of(cost::price(step, design.cluster).traffic), want) << n;
  }
}

TEST(LayerCodecs, BytesOfSparseCodecsAreExactToo) {
  for (const int64_t n : {2, 3, 4}) {
    const Design design = designed({"compression.codec=topk/0.02+ef"}, n);
    int64_t payload = 0, places = 0;
    for (const codec::Runs& runs : design.placement.layers)
      for (const codec::Run& run : runs.runs) {
        const int64_t grain = (run.elements + n - 1) / n;
        const bool plain = run.codec == codec::CodecSpec();
        payload += plain ? 4 * grain : 4 * (grain / 50);
        places += plain ? 0 : 4 * (grain / 50);
      }
    const std::pair<int64_t, int64_t> want = {2 * n * (n - 1) * payload, 2 * n * (n - 1) * places};
    const program::Program& step = design.steady().front();
    EXPECT_EQ(bytes_of(sim::simulate(step, design.cluster).traffic), want) << n;
    EXPECT_EQ(bytes_of(cost::price(step, design.cluster).traffic), want) << n;
  }
}

std::string sparse_elsewhere(const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"compression.codec=none"};
  all.insert(all.end(), sets.begin(), sets.end());
  return refusal(all);
}

TEST(LayerCodecs, SparseCodecsAreRefusedElsewhereWithTheNearestChoice) {
  EXPECT_THAT(sparse_elsewhere({"placement.codecs.gradients=[\"topk/0.01+ef\"]"}),
              HasSubstr("nearest: compression.codec = \"topk/0.01+ef\""));
  EXPECT_THAT(sparse_elsewhere({"placement.preset=zero3", "placement.codecs.weights=randomk"}),
              HasSubstr("nearest: \"qsgd1\""));
  EXPECT_THAT(sparse_elsewhere({"sync.policy=diloco", "sync.replica=2", "sync.outer.codec=topk"}),
              HasSubstr("\"qsgd1\""));
}

// Two all-reduces of a unit: 4 bytes of rank (rows + columns) of each matrix and of what has no
// factors, n - 1 times there and back. Embeddings have 65 and 64 rows of 128.
TEST(LayerCodecs, FactorsHaveRoomForTheRanksThatMayBeChosen) {
  UnitShape unit;
  unit.parameters = {{"a", {40, 24}, 0}, {"b", {7}, 960}};
  unit.elements = 967;
  const codec::Runs runs = codec::parse_runs("powersgd/3:960|none:7@2");
  const LowRankUnit still = low_rank_unit(unit, runs, 0), changing = low_rank_unit(unit, runs, 2);
  EXPECT_EQ(kept_elements(still), 3 * 24);
  EXPECT_EQ(kept_elements(changing), 4 * 24);
  EXPECT_EQ(right_elements(changing), 3 * 24);
  EXPECT_EQ(print_low_rank(still), "40x24/3|7");
  EXPECT_EQ(print_low_rank(changing), "40x24/3:4|7");
  for (const LowRankUnit& of : {still, changing}) EXPECT_EQ(parse_low_rank(print_low_rank(of)), of);
}

TEST(LayerCodecs, FactorsOfLowRankMoveTheirBytesAlone) {
  for (const int64_t n : {2, 3, 4}) {
    const Design design = designed({"compression.codec=powersgd/4+ef"}, n);
    int64_t numbers = 0;
    for (const UnitShape& unit : design.shape.units)
      for (const ParameterShape& parameter : unit.parameters) {
        const bool matrix = parameter.dims.size() == 2;
        const int64_t factors = matrix ? 4 * (parameter.dims[0] + parameter.dims[1]) : 0;
        numbers += matrix ? factors : parameter.elements();
      }
    const auto bytes = [](const Ledger& ledger) {
      int64_t all = 0;
      for (const Traffic& row : ledger.rows())
        if (row.operation == "all-reduce") all += row.payload_bytes + row.metadata_bytes;
      return all;
    };
    const program::Program& step = design.steady().front();
    const int64_t scalars = 2 * (n - 1) * 8 * 5;  // what the ranks agree on
    EXPECT_EQ(bytes(sim::simulate(step, design.cluster).traffic),
              2 * (n - 1) * 4 * numbers + scalars)
        << n;
    EXPECT_EQ(bytes(cost::price(step, design.cluster).traffic), 2 * (n - 1) * 4 * numbers + scalars)
        << n;
  }
}

TEST(LayerCodecs, ACodecInWhichNoLayerIsSentIsRefused) {
  // The embedding has 65 rows of 128.
  const std::string largest = std::to_string(4 * 128 * 128);
  const std::string too_small =
      "compression.skip_below_elements=" + std::to_string(4 * 128 * 128 + 1);
  EXPECT_EQ(refusal({"compression.skip_below_elements=" + largest}), "accepted");
  EXPECT_THAT(
      refusal({too_small}),
      HasSubstr("compression.codec = \"qsgd4/64\" cannot take effect: the largest layer has " +
                largest +
                " elements, fewer than compression.skip_below_elements = 65537; "
                "the nearest valid choice is \"none\", or "
                "compression.skip_below_elements = " +
                largest));
  EXPECT_THAT(refusal({"compression.codec=powersgd/100000"}),
              HasSubstr("the nearest valid choice is \"none\""));
  EXPECT_NO_THROW(designed({too_small}, 1));
}

TEST(LayerCodecs, OneRankSendsNothing) {
  EXPECT_TRUE(designed({}, 1).placement.layers.empty());
  EXPECT_TRUE(designed({"compression.codec=none"}).placement.layers.empty());
}

/// Gradients of bf16 runs are sent in bf16 where no codec is written.
TEST(LayerCodecs, AWrittenCodecGoesBeforeThatOfThePrecision) {
  const Design design = designed({"train.precision=bf16"}), wide = designed({});
  EXPECT_EQ(design.placement.codecs.gradients, wide.placement.codecs.gradients);
  EXPECT_FALSE(design.placement.layers.empty());
  EXPECT_THAT(refusal({"train.precision=bf16", "placement.codecs.gradients=[\"bf16\"]"}),
              HasSubstr("placement.codecs.gradients = [\"none\"]"));
}

TEST(LayerCodecs, WhatCannotUseThemIsRefusedWithTheNearestChoice) {
  const std::string nearest = "the nearest valid choice is ";
  for (const char* preset : {"zero1", "zero2", "zero3", "hsdp"})
    EXPECT_THAT(refusal({std::string("placement.preset=") + preset}),
                HasSubstr(nearest + "placement.preset = \"ddp\""));
  EXPECT_THAT(refusal({"placement.codecs.gradients=[\"int8\"]"}),
              HasSubstr(nearest + "placement.codecs.gradients = [\"none\"]"));
  EXPECT_THAT(refusal({"sync.policy=diloco", "sync.replica=2"}),
              HasSubstr(nearest + "sync.outer.codec = \"qsgd4/64\""));
  EXPECT_THAT(refusal({"mesh.axes.x=2", "model.shape.vocabulary=66"}),
              HasSubstr(nearest + "mesh.axes of data alone"));
  EXPECT_THAT(refusal({"mesh.axes.stage=2"}), HasSubstr(nearest + "mesh.axes of data alone"));
  EXPECT_EQ(refusal({"compression.codec=int8/64+ef"}), "accepted");
  EXPECT_EQ(refusal({"compression.codec=topk/0.01+ef"}), "accepted");
  EXPECT_THAT(refusal({"compression.codec=topk+ef", "sync.policy=diloco", "sync.replica=2"}),
              HasSubstr(nearest + "sync.outer.codec = \"qsgd1/512\""));
  EXPECT_THAT(sparse_elsewhere({"placement.codecs.gradients=[\"powersgd/2\"]"}),
              HasSubstr("nearest: compression.codec = \"powersgd/2\""));
  EXPECT_THAT(refusal({"compression.codec=powersgd/0"}), HasSubstr("powersgd/1"));
  EXPECT_THAT(refusal({"compression.codec=bf16"}),
              HasSubstr(nearest + "placement.codecs.gradients = [\"bf16\"]"));
  EXPECT_THAT(refusal({"compression.codec=fp16"}),
              HasSubstr(nearest + "placement.codecs.gradients = [\"bf16\"]"));
  EXPECT_THAT(refusal({"compression.codec=qsgd9"}), HasSubstr("nearest valid choice: qsgd8"));
  EXPECT_THAT(refusal({"compression.codec=none", "compression.skip_below_elements=7"}),
              HasSubstr("compression.codec = \"qsgd4\""));
}

}  // namespace
}  // namespace strait::strategy
