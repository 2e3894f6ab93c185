// Processes on the tensor grid, of a transformer and of a U-Net: the bits and bytes of threads,
// which equal one rank.
#include <gtest/gtest.h>

#include "tests/app/mpi_and_threads.h"

namespace strait {
namespace {

struct Case {
  int64_t x, y, z, stage, ranks;
  std::string placement, precision;
};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return "x" + std::to_string(c.x) + "y" + std::to_string(c.y) + "z" + std::to_string(c.z) +
         "stage" + std::to_string(c.stage) + "of" + std::to_string(c.ranks) + c.placement +
         c.precision;
}

std::vector<std::string> settings_of(const Case& c) {
  return {"mesh.axes.x=" + std::to_string(c.x),
          "mesh.axes.y=" + std::to_string(c.y),
          "mesh.axes.z=" + std::to_string(c.z),
          "mesh.axes.stage=" + std::to_string(c.stage),
          "placement.preset=" + c.placement,
          "train.precision=" + c.precision,
          "train.steps=6"};
}

class MpiGrid : public ::testing::TestWithParam<Case> {};

TEST_P(MpiGrid, GivesTheBitsAndBytesOfThreadRanks) {
  std::vector<std::string> settings = settings_of(GetParam());
  settings.insert(settings.end(), {"train.global_batch_size=24", "train.micro_batch_size=3",
                                   "model.shape.dropout=0.1", "model.shape.vocabulary=24"});
  test::expect_processes_to_train_as_threads(settings, GetParam().ranks);
}

INSTANTIATE_TEST_SUITE_P(Grid, MpiGrid,
                         ::testing::Values(Case{1, 2, 1, 1, 2, "ddp", "fp64"},
                                           Case{2, 2, 1, 1, 4, "ddp", "bf16"},
                                           Case{1, 2, 2, 1, 4, "zero3", "fp64"},
                                           Case{1, 1, 2, 1, 4, "hsdp", "bf16"},
                                           Case{1, 2, 1, 2, 4, "ddp", "fp64"}),
                         name_of);

std::string unet_run_file(const std::string& folder) {
  const std::string path = folder + "/unet.toml";
  std::ofstream(path) << "name = \"unet\"\n[model]\nfamily = \"unet\"\n"
                         "unet = { channels = [4, 8], image = 8, attention_from = 4, colors = 2 }\n"
                         "[data]\npath = \"synthetic:images/size=8/colors=2/count=200\"\n"
                         "[train]\nglobal_batch_size = 8\nmicro_batch_size = 1\n"
                         "[optimizer]\nlearning_rate = 3e-3\nwarmup_steps = 3\n"
                         "[evaluation]\nevery_steps = 0\nbatches = 2\n";
  return path;
}

class MpiUnet : public ::testing::TestWithParam<Case> {};

TEST_P(MpiUnet, GivesTheBitsAndBytesOfThreadRanks) {
  test::expect_processes_to_train_as_threads(settings_of(GetParam()), GetParam().ranks,
                                             unet_run_file);
}

INSTANTIATE_TEST_SUITE_P(
    Grid, MpiUnet,
    ::testing::Values(Case{2, 1, 1, 1, 2, "ddp", "fp64"}, Case{1, 2, 1, 1, 2, "ddp", "fp32"},
                      Case{2, 2, 1, 1, 4, "ddp", "fp64"}, Case{1, 2, 2, 1, 4, "zero3", "fp64"},
                      Case{1, 1, 1, 2, 4, "zero1", "fp64"}, Case{1, 2, 1, 2, 4, "ddp", "fp64"}),
    name_of);

}  // namespace
}  // namespace strait
