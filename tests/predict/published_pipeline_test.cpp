// The log of 175 billion parameters on 128 GCDs (ORNL, 10 November 2023): what each of 16 stages
// holds at its peak, from the programs that would run. docs/validation.md prints the table.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "strait/config/parse.h"
#include "strait/predict/predict.h"
#include "strait/program/classes.h"

namespace strait {
namespace {

constexpr double kMebibyte = 1 << 20;
constexpr int64_t kStages = 16;
/// "max allocated" of the log, in MiB, where it was at hand; 0: not.
constexpr std::array<double, kStages> kPublished = {33902, 31435, 31135, 30835, 0, 0, 0, 0,
                                                    0,     0,     0,     0,     0, 0, 0, 29138};
/// The log's engine keeps the received quarter of an activation (its ranks of x send one each)
/// beside the whole one until the backward.
constexpr double kReceivedQuarter = 2048.0 * 12288 * 2 / 4 / kMebibyte;
/// The tied embedding's gradient is summed over both ends: they keep 16 bits of it, not the half of
/// them that is a data rank's of two.
constexpr double kTiedGradient = 12672.0 * 12288 / kMebibyte;
/// Fitted, in MiB: what its libraries hold beside tensors of the model, the same on all stages.
constexpr double kConstant = 2945;

/// TP 4, PP 16, DP 2, one sequence of 2,048 tokens, 160 micro-batches, ZeRO-1, full recomputation.
/// Embedding and head are cut over the 4 ranks: a quarter of 50,688 rows each.
strategy::Design design_of_the_log() {
  const std::string text =
      "[model]\nfamily = \"gpt2\"\n[model.shape]\nlayers = 96\nheads = 96\nkv_heads = 96\n"
      "width = 12288\nffn_width = 49152\ncontext = 2048\nbias = true\n"
      "[cluster]\npreset = \"frontier\"\n";
  const std::vector<std::string> sets = {
      "train.precision=bf16",
      "train.global_batch_size=320",
      "train.micro_batch_size=1",
      "train.recompute=block",
      "mesh.axes.x=4",
      "tensor.tiles=off",
      "mesh.axes.stage=16",
      "pipeline.cuts=6,12,18,24,30,36,42,48,54,60,66,72,78,84,90",
      "placement.preset=zero1"};
  return strategy::make_design(parse_run(text, "test.toml", sets), 128, 50688);
}

int64_t parameters_of(const strategy::Design& design, int64_t stage) {
  const int64_t blocks = static_cast<int64_t>(design.shape.blocks.size());
  const int64_t begin = stage == 0 ? 0 : 1 + 6 * stage;
  const int64_t end = stage == kStages - 1 ? blocks : 7 + 6 * stage;
  int64_t elements = 0;
  for (int64_t block = begin; block < end; ++block)
    elements += design.layout.local_elements(design.shape.blocks[static_cast<size_t>(block)].unit);
  return elements;
}

/// Activations and workspaces at their peak: without anything else, which in the log is not there
/// when they are.
int64_t peak_activations(program::Program program) {
  for (program::ValueArray& array : program.arrays)
    if (array.category != program::Category::kActivations) array.partition = {0, 0};
  return program::peak_memory(program, program::first_rank(program)).total();
}

TEST(PublishedPipeline, StagesHoldWhatTheLogSays) {
  const strategy::Design design = design_of_the_log();
  // The tied unit holds the last norm on both ends; in the log it is on the last stage alone.
  EXPECT_EQ(parameters_of(design, 0), 2'899'359'744 + 2 * 12288);
  for (int64_t stage = 1; stage < kStages - 1; ++stage)
    EXPECT_EQ(parameters_of(design, stage), 2'718'480'384);
  ASSERT_EQ(design.steady().size(), static_cast<size_t>(kStages));
  std::vector<double> predicted;
  for (int64_t stage = 0; stage < kStages; ++stage) {
    const program::Program& program = design.steady()[static_cast<size_t>(stage)];
    const program::MemoryUse use = program::resident_memory(program, program::first_rank(program));
    const double in_flight = static_cast<double>(kStages - stage);
    // Gradients: one byte of each parameter (16 bits, of which a data rank of two keeps half); here
    // they are 32 bits.
    const double bytes = static_cast<double>(use.weights + use.optimizer + use.gradients / 4 +
                                             peak_activations(program));
    predicted.push_back(bytes / kMebibyte + in_flight * kReceivedQuarter + kConstant +
                        (stage == 0 || stage == kStages - 1 ? kTiedGradient : 0));
    const double published = kPublished[static_cast<size_t>(stage)];
    std::printf("| %ld | %.0f | %s |\n", static_cast<long>(stage), predicted.back(),
                published > 0 ? std::to_string(std::lround(published)).c_str() : "");
    EXPECT_NEAR(predicted.back(), published, published > 0 ? 0.01 * published : 1e9) << stage;
  }
  for (int64_t stage = 1; stage + 2 < kStages; ++stage)
    EXPECT_EQ(std::lround(predicted[static_cast<size_t>(stage)] -
                          predicted[static_cast<size_t>(stage) + 1]),
              300)
        << "per micro-batch in flight, stage " << stage;
}

}  // namespace
}  // namespace strait
