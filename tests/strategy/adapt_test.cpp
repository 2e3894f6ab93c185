// L-GreCo without a rank: when it chooses, among what, that its programs move the bytes it counts,
// and what it refuses.
#include "strait/strategy/adapt/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/config/parse.h"
#include "strait/cost/cost.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/adapt/adapt.h"
#include "strait/strategy/compose/adapted.h"

namespace strait::strategy {
namespace {

using ::testing::HasSubstr;

Design designed(std::vector<std::string> sets, int64_t ranks = 4) {
  const std::string text =
      "[model]\npreset = \"nano-char\"\n[train]\nglobal_batch_size = 24\n"
      "[placement]\npreset = \"ddp\"\n"
      "[compression]\ncodec = \"qsgd4/64\"\nadapt = \"lgreco\"\n";
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

TEST(Adapt, ChoosesEverySoManyStepsAndGathersBefore) {
  const AdaptPolicy policy{1.0, 5, 4, 3};
  std::vector<int64_t> chooses, gathers, begins;
  for (int64_t step = 1; step <= 14; ++step) {
    if (policy.chooses_after(step)) chooses.push_back(step);
    if (policy.gathers(step)) gathers.push_back(step);
    if (policy.begins(step)) begins.push_back(step);
  }
  EXPECT_EQ(chooses, (std::vector<int64_t>{5, 9, 13}));
  EXPECT_EQ(gathers, (std::vector<int64_t>{3, 4, 5, 7, 8, 9, 11, 12, 13}));
  EXPECT_EQ(begins, (std::vector<int64_t>{3, 7, 11}));
  const AdaptPolicy at_once{1.0, 2, 4, 3};  // fewer steps before the first choice
  EXPECT_TRUE(at_once.begins(1));
  EXPECT_TRUE(at_once.gathers(2));
  EXPECT_FALSE(AdaptPolicy().gathers(1));
  EXPECT_FALSE(AdaptPolicy().chooses_after(1));
}

std::vector<std::string> names_like(const std::string& uniform, int64_t rows = 64,
                                    int64_t columns = 96) {
  std::vector<std::string> names;
  const AdaptedLayer layer{"a", 0, 0, 0, {codec::parse_codec(uniform), rows * columns}, rows};
  for (const codec::CodecSpec& setting : settings_of(layer))
    names.push_back(codec::print_codec(setting));
  return names;
}

TEST(Adapt, SettingsAreOfTheUniformOnesFamily) {
  EXPECT_EQ(names_like("qsgd3/64+ef"),
            (std::vector<std::string>{"qsgd1/64+ef", "qsgd2/64+ef", "qsgd3/64+ef", "qsgd4/64+ef",
                                      "qsgd5/64+ef", "qsgd6/64+ef", "qsgd7/64+ef", "qsgd8/64+ef"}));
  EXPECT_EQ(names_like("topk/0.2"),
            (std::vector<std::string>{"topk/0.025", "topk/0.05", "topk/0.1", "topk/0.2", "topk/0.4",
                                      "topk/0.8", "topk/1"}));
  EXPECT_EQ(names_like("powersgd/2+ef"),
            (std::vector<std::string>{"powersgd/1+ef", "powersgd/2+ef", "powersgd/3+ef",
                                      "powersgd/4+ef"}));
  // Factors of more than 5 columns are more numbers than such a matrix.
  EXPECT_EQ(names_like("powersgd/4", 12, 10),
            (std::vector<std::string>{"powersgd/2", "powersgd/3", "powersgd/4", "powersgd/5"}));
  EXPECT_TRUE(names_like("int8").empty());
}

TEST(Adapt, GradientsAreKeptForTheChoiceAlone) {
  const Design design = designed({}), plain = designed({"compression.adapt=none"});
  const auto count = [](const Design& of) {
    return std::ranges::count_if(of.steady().front().arrays, [](const program::ValueArray& array) {
      return array.address.state == kGatheredState;
    });
  };
  EXPECT_GT(count(design), 0);
  EXPECT_EQ(count(plain), 0);
  EXPECT_FALSE(designed({}, 1).adapt.adapts());
}

/// Layers of very different size and shape of numbers.
codec::ConstValues gradient_of(const AdaptedLayer& layer, std::vector<float>& values) {
  const RandomStream stream(5, layer.name);
  values.resize(static_cast<size_t>(layer.uniform.elements));
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = stream.normal(i);
    values[i] = static_cast<float>((layer.unit % 2 ? x * x * x : x) *
                                   std::ldexp(1.0, static_cast<int>(layer.unit % 5)));
  }
  return {values.data(), Dtype::kFloat32, layer.uniform.elements};
}

int64_t all_bytes(const Ledger& ledger) {
  int64_t bytes = 0;
  for (const Traffic& row : ledger.rows()) bytes += row.payload_bytes + row.metadata_bytes;
  return bytes;
}

int64_t coded_bytes(const Ledger& ledger) {
  int64_t bytes = 0;
  for (const Traffic& row : ledger.rows())
    if (codec::is_runs(row.codec)) bytes += row.payload_bytes + row.metadata_bytes;
  return bytes;
}

TEST(Adapt, ProgramsMoveTheBytesThatTheChoiceCounts) {
  for (const char* codec : {"qsgd4/64", "topk/0.02+ef"}) {
    const Design design = designed({std::string("compression.codec=") + codec}, 3);
    AdaptedPrograms programs(design);
    std::vector<float> values;
    const SettingsChoice choice =
        choose_settings(programs.layers(), programs.parts(), 1.0,
                        [&](const AdaptedLayer& layer) { return gradient_of(layer, values); });
    EXPECT_LT(choice.bytes, choice.uniform_bytes) << codec;
    EXPECT_LE(choice.error, choice.allowed_error) << codec;
    EXPECT_NE(choice.settings, uniform_settings(programs.layers()));
    int64_t plain = 0;  // vectors go along
    for (const codec::Runs& runs : design.placement.layers)
      for (size_t run = 0; run < runs.runs.size(); ++run)
        if (runs.runs[run].codec == codec::CodecSpec()) plain += 2 * 3 * 2 * 4 * runs.grain(run);
    const program::Program& step = programs.with(choice.settings).classes(kSteady).front();
    EXPECT_EQ(coded_bytes(sim::simulate(step, design.cluster).traffic), choice.bytes + plain);
    EXPECT_EQ(coded_bytes(cost::price(step, design.cluster).traffic), choice.bytes + plain);
    EXPECT_EQ(coded_bytes(cost::price(design.steady().front(), design.cluster).traffic),
              choice.uniform_bytes + plain);
    // The uniform choice is the design itself, and a set is composed once.
    EXPECT_EQ(programs.with(uniform_settings(programs.layers())).classes(kSteady).front(),
              design.steady().front());
    EXPECT_EQ(&programs.with(choice.settings), &programs.with(choice.settings));
  }
}

// Sums of factors are all-reduces like those of what has no factors.
TEST(Adapt, ProgramsOfLowRankSaveTheBytesThatTheChoiceCounts) {
  const Design design = designed({"compression.codec=powersgd/4+ef"}, 3);
  AdaptedPrograms programs(design);
  std::vector<float> values;
  const SettingsChoice choice =
      choose_settings(programs.layers(), programs.parts(), 1.0,
                      [&](const AdaptedLayer& layer) { return gradient_of(layer, values); });
  EXPECT_LT(choice.bytes, choice.uniform_bytes);
  EXPECT_LE(choice.error, choice.allowed_error);
  const program::Program& step = programs.with(choice.settings).classes(kSteady).front();
  const int64_t saved = choice.uniform_bytes - choice.bytes;
  const auto simulated = [&](const program::Program& program) {
    return all_bytes(sim::simulate(program, design.cluster).traffic);
  };
  const auto priced = [&](const program::Program& program) {
    return all_bytes(cost::price(program, design.cluster).traffic);
  };
  EXPECT_EQ(simulated(design.steady().front()) - simulated(step), saved);
  EXPECT_EQ(priced(design.steady().front()) - priced(step), saved);
  EXPECT_EQ(programs.with(uniform_settings(programs.layers())).classes(kSteady).front(),
            design.steady().front());
}

class ResidentValues : public ::testing::TestWithParam<const char*> {};

TEST_P(ResidentValues, AreThoseOfTheUniformSetting) {
  const Design design = designed({std::string("compression.codec=") + GetParam()});
  AdaptedPrograms programs(design);
  LayerSettings settings = uniform_settings(programs.layers());
  for (size_t l = 0; l < settings.size(); l += 2) settings[l] = 0;
  const auto resident = [](const program::Program& step) {
    std::vector<program::ValueArray> arrays;
    for (const program::ValueArray& array : step.arrays)
      if (array.lifetime != program::Lifetime::kTransient) arrays.push_back(array);
    return arrays;
  };
  EXPECT_EQ(resident(programs.with(settings).classes(kSteady).front()),
            resident(design.steady().front()));
}

INSTANTIATE_TEST_SUITE_P(Adapt, ResidentValues, ::testing::Values("topk/0.02+ef", "powersgd/4+ef"));

TEST(Adapt, EqualChoicesHaveEqualHashes) {
  EXPECT_EQ(settings_hash({1, 2, 3}), settings_hash({1, 2, 3}));
  EXPECT_NE(settings_hash({1, 2, 3}), settings_hash({1, 3, 2}));
  EXPECT_NE(settings_hash({1, 2, 3}), settings_hash({1, 2}));
}

TEST(Adapt, WhatCannotTakeEffectIsRefusedWithTheNearestChoice) {
  const std::string nearest = "the nearest valid choice is ";
  EXPECT_THAT(refusal({"compression.codec=int8/64"}),
              HasSubstr(nearest + "compression.codec = \"qsgd8/512\""));
  EXPECT_THAT(refusal({"compression.codec=e3m0+ef"}),
              HasSubstr(nearest + "compression.codec = \"qsgd4/512+ef\""));
  EXPECT_THAT(refusal({"compression.codec=randomk/0.1+ef"}),
              HasSubstr(nearest + "compression.codec = \"topk/0.1+ef\""));
  EXPECT_THAT(refusal({"compression.codec=none"}),
              HasSubstr(nearest + "compression.codec = \"qsgd4/512\""));
  EXPECT_THAT(refusal({"compression.adapt_every_steps=5"}), HasSubstr(nearest + "5"));
  EXPECT_THAT(refusal({"optimizer.in_backward=true", "train.clip_norm=0"}),
              HasSubstr(nearest + "optimizer.in_backward = false"));
  EXPECT_THAT(refusal({"compression.adapt=none", "lgreco.alpha=2"}),
              HasSubstr("compression.adapt = \"lgreco\""));
  EXPECT_THAT(refusal({"compression.adapt=none", "compression.adapt_every_steps=7"}),
              HasSubstr("compression.adapt = \"lgreco\""));
  EXPECT_THAT(refusal({"compression.codec=powersgd/120"}), HasSubstr("no layer is sent in"));
  EXPECT_THAT(refusal({"compression.adapt=lgrec"}), HasSubstr("\"lgreco\""));
  EXPECT_THAT(refusal({"lgreco.alpha=0"}), HasSubstr("lgreco.alpha"));
}

}  // namespace
}  // namespace strait::strategy
