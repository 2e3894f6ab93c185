// [pipeline]: what can take effect, and what is refused with file, line, key and the nearest
// choice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "strait/base/errors.h"
#include "strait/config/check_mesh.h"
#include "strait/config/parse.h"
#include "strait/config/validate.h"

namespace strait {
namespace {

using testing::HasSubstr;

/// 12 layers, 12 sequences in a step.
std::string refusal(const std::string& text, const std::string& key, int64_t ranks = 4) {
  try {
    validate_run(parse_run(text, "run.toml"), ranks);
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, key) << error.what();
    if (text.find(key) != std::string::npos) {
      EXPECT_EQ(error.place().file, "run.toml");
      EXPECT_TRUE(error.place().line.has_value());
    }
    return error.what();
  }
  return "accepted";
}

const std::string kStages = "mesh.axes.stage = 4\n";

TEST(PipelineKeys, WhatStagesCanUseIsAccepted) {
  for (const char* order : {"gpipe", "1f1b", "zero-bubble-h1"})
    EXPECT_EQ(refusal(kStages + "pipeline.order = \"" + order + "\"", ""), "accepted");
  EXPECT_EQ(refusal(kStages + "pipeline.order = \"interleaved\"\npipeline.chunks_per_stage = 3\n"
                              "train.micro_batch_size = 1",
                    ""),
            "accepted");
  EXPECT_EQ(refusal(kStages + "pipeline.order = \"zero-bubble-h2\"\ntrain.clip_norm = 0", ""),
            "accepted");
  EXPECT_EQ(refusal(kStages + "pipeline.cuts = \"1, 5,11\"", ""), "accepted");
}

TEST(PipelineKeys, NothingTakesEffectWithoutStages) {
  for (const char* key : {"order = \"gpipe\"", "chunks_per_stage = 2", "cuts = \"3\""}) {
    const std::string text = std::string("pipeline.") + key;
    const std::string name = text.substr(0, text.find(' '));
    EXPECT_THAT(refusal(text, name), HasSubstr("cannot take effect with mesh.axes.stage = 1"));
  }
}

TEST(PipelineKeys, ChunksNeedBlocksAndTheirOrder) {
  EXPECT_THAT(refusal(kStages + "pipeline.chunks_per_stage = 2", "pipeline.chunks_per_stage"),
              HasSubstr("nearest valid value is 1, or pipeline.order = \"interleaved\""));
  const std::string interleaved =
      kStages + "train.micro_batch_size = 1\npipeline.order = \"interleaved\"\n";
  EXPECT_THAT(refusal(interleaved, "pipeline.chunks_per_stage"),
              HasSubstr("the nearest valid value is 2"));
  EXPECT_THAT(refusal(interleaved + "pipeline.chunks_per_stage = 4", "pipeline.chunks_per_stage"),
              HasSubstr("16 runs of blocks of 4 stages, but there are 12 transformer blocks; the "
                        "nearest valid value is 3"));
  EXPECT_THAT(refusal(interleaved + "model.shape = { layers = 7 }", "pipeline.order"),
              HasSubstr("the nearest valid value is \"1f1b\""));
  EXPECT_THAT(refusal("mesh.axes.stage = 16", "mesh.axes.stage", 16),
              HasSubstr("one of the 12 transformer blocks; the nearest valid value is 8"));
}

TEST(PipelineKeys, InterleavedStagesTakeMicroBatchesByTheStage) {
  const std::string text =
      kStages + "pipeline = { order = \"interleaved\", chunks_per_stage = 2 }\n";
  EXPECT_THAT(
      refusal(text + "train.micro_batch_size = 2", "train.micro_batch_size"),
      HasSubstr("takes micro-batches 4 at a time, but a step has 6; the nearest valid value "
                "is 1"));
  EXPECT_THAT(
      refusal(text + "train.global_batch_size = 10\ntrain.micro_batch_size = 1", "pipeline.order"),
      HasSubstr("\"1f1b\", or a share of train.global_batch_size per data-parallel rank of "
                "8 or 12"));
}

TEST(PipelineKeys, CutsAreAscendingBlocks) {
  for (const char* cuts : {"3,6", "3,6,12", "0,3,6", "6,3,9", "3,6,6"})
    EXPECT_THAT(refusal(kStages + "pipeline.cuts = \"" + cuts + "\"", "pipeline.cuts"),
                HasSubstr("takes 3 ascending numbers from 1 to 11; the nearest valid value is "
                          "\"3,6,9\", or \"auto\""));
  for (const char* cuts : {"", "even", "3;6;9", "3,,6", "3,6,9,", "99999999999999999999"})
    EXPECT_THAT(refusal(kStages + "pipeline.cuts = \"" + cuts + "\"", "pipeline.cuts"),
                HasSubstr("the nearest valid value is \"auto\""));
  EXPECT_EQ(parse_cuts("3, 6,9"), (std::vector<int64_t>{3, 6, 9}));
  EXPECT_TRUE(parse_cuts("auto").empty());
}

TEST(PipelineKeys, SplitBackwardsNeedBlocksThatHaveOne) {
  EXPECT_THAT(refusal(kStages + "runtime.device = \"cuda\"\npipeline.order = \"zero-bubble-h1\"",
                      "pipeline.order"),
              HasSubstr("blocks run as one piece; the nearest valid value is \"1f1b\""));
}

TEST(PipelineKeys, ActivationCodecsAreDenseAndWithoutMemory) {
  const auto with = [](const char* codec, const char* more = "") {
    return refusal(kStages + "pipeline.activation_codec = \"" + codec + "\"\n" + more,
                   "pipeline.activation_codec");
  };
  for (const char* codec : {"none", "bf16", "int8", "int4/64", "fp8e4m3"})
    EXPECT_EQ(with(codec), "accepted");
  const auto nearest = [](const std::string& codec) {
    return testing::EndsWith("the nearest valid value is \"" + codec + "\"");
  };
  for (const char* codec : {"topk/0.01", "randomk/0.1+ef", "powersgd/2", "powersgd/4+ef"})
    EXPECT_THAT(with(codec), nearest("int8")) << codec;
  EXPECT_THAT(with("int8+ef"), nearest("int8"));
  const char* const bf16 = "train.precision = \"bf16\"";
  EXPECT_THAT(with("bf16", bf16), nearest("none"));
  EXPECT_THAT(with("bf16+ef", bf16), nearest("none"));
}

TEST(PipelineKeys, ActivationCodecsDrawNothing) {
  for (const char* codec : {"qsgd4+stochastic", "qsgd4+stochastic+ef"})
    EXPECT_THAT(refusal(kStages + "pipeline.activation_codec = \"" + codec + "\"",
                        "pipeline.activation_codec"),
                testing::EndsWith("the nearest valid value is \"qsgd4\""));
}

TEST(PipelineKeys, ActivationCodecsHoldTheRangeOfActivations) {
  for (const auto& [precision, codec, nearest] :
       {std::tuple{"fp32", "fp16", "bf16"}, {"fp64", "fp16", "bf16"}, {"bf16", "fp16", "none"}})
    for (const char* feedback : {"", "+ef"})
      EXPECT_THAT(refusal(kStages + "train.precision = \"" + precision +
                              "\"\npipeline.activation_codec = \"" + codec + feedback + "\"",
                          "pipeline.activation_codec"),
                  testing::EndsWith(std::string("the nearest valid value is \"") + nearest + "\""))
          << precision << feedback;
}

TEST(PipelineKeys, H2WaitsForNothingBeforeTheUpdate) {
  const std::string h2 = kStages + "pipeline.order = \"zero-bubble-h2\"\n";
  EXPECT_THAT(refusal(h2, "pipeline.order"),
              HasSubstr("\"zero-bubble-h1\", or set train.clip_norm = 0"));
  EXPECT_THAT(refusal(h2 + "train.clip_norm = 0\ntrain.non_finite = \"skip\"", "pipeline.order"),
              HasSubstr("\"zero-bubble-h1\", or set train.non_finite = \"stop\""));
}

TEST(PipelineKeys, PostValidationGoesWithH2) {
  const std::string key = "pipeline.post_validation", on = key + " = true\n";
  const std::string h2 = kStages + "pipeline.order = \"zero-bubble-h2\"\n" + on;
  for (const char* more : {"", "train.clip_norm = 0", "train.non_finite = \"skip\""})
    EXPECT_EQ(refusal(h2 + more, ""), "accepted") << more;
  EXPECT_THAT(refusal(kStages + "pipeline.order = \"zero-bubble-h2\"", "pipeline.order"),
              HasSubstr("or pipeline.post_validation = true"));
  EXPECT_THAT(refusal(on, key),
              HasSubstr("mesh.axes.stage = 1; the nearest valid value is false, or mesh.axes.stage "
                        "= 2 with pipeline.order = \"zero-bubble-h2\""));
  for (const char* order : {"gpipe", "1f1b", "zero-bubble-h1"})
    EXPECT_THAT(refusal(kStages + on + "pipeline.order = \"" + order + "\"", key),
                HasSubstr("the nearest valid value is false, or set pipeline.order = "
                          "\"zero-bubble-h2\""));
  EXPECT_THAT(refusal(h2 + "train.clip_norm = 0\noptimizer.in_backward = true", key),
              HasSubstr("false, or set optimizer.in_backward = false"));
  EXPECT_THAT(refusal(h2 + "mesh.axes.data = 2\nsync.policy = \"diloco\"", key, 8),
              HasSubstr("false, or set sync.policy = \"every-step\""));
}

}  // namespace
}  // namespace strait
