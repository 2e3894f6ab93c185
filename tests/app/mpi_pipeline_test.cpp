// Pipelines of processes: the bits and bytes of those of threads, which equal one rank.
#include <gtest/gtest.h>

#include "tests/app/mpi_and_threads.h"

namespace strait {
namespace {

struct Case {
  std::string placement;
  int64_t stages, ranks;
  std::string order = "1f1b";
};

class MpiPipeline : public ::testing::TestWithParam<Case> {};

TEST_P(MpiPipeline, GivesTheBitsAndBytesOfThreadRanks) {
  const Case c = GetParam();
  test::expect_processes_to_train_as_threads(
      {"placement.preset=" + c.placement, "mesh.axes.stage=" + std::to_string(c.stages),
       "pipeline.order=" + c.order,
       std::string("pipeline.post_validation=") + (c.order == "zero-bubble-h2" ? "true" : "false"),
       "pipeline.chunks_per_stage=" + std::string(c.order == "interleaved" ? "2" : "1"),
       "model.shape.layers=4", "train.global_batch_size=24", "train.micro_batch_size=3",
       "train.steps=6"},
      c.ranks);
}

INSTANTIATE_TEST_SUITE_P(Grid, MpiPipeline,
                         ::testing::Values(Case{"ddp", 2, 2}, Case{"zero1", 2, 4},
                                           Case{"zero3", 2, 4}, Case{"zero3", 2, 8},
                                           Case{"ddp", 4, 4, "zero-bubble-h1"},
                                           Case{"zero1", 2, 4, "zero-bubble-h2"},
                                           Case{"zero1", 2, 4, "interleaved"}),
                         [](const auto& test) {
                           std::string name = test.param.placement + "of" +
                                              std::to_string(test.param.ranks) + test.param.order;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace strait
