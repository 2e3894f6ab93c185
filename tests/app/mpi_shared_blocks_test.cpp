// Processes that share blocks along x, or sequences: the bits and bytes of threads, which equal one
// rank.
#include <gtest/gtest.h>

#include "tests/app/mpi_and_threads.h"

namespace strait {
namespace {

struct Case {
  std::string placement, precision;
  int64_t ranks;
};

class MpiSharedBlocks : public ::testing::TestWithParam<Case> {};

TEST_P(MpiSharedBlocks, GivesTheBitsAndBytesOfThreadRanks) {
  const Case c = GetParam();
  test::expect_processes_to_train_as_threads(
      {"placement.preset=" + c.placement, "mesh.axes.x=2", "train.precision=" + c.precision,
       "train.global_batch_size=24", "train.micro_batch_size=3", "train.steps=6",
       "model.shape.dropout=0.1", "model.shape.vocabulary=24"},
      c.ranks);
}

INSTANTIATE_TEST_SUITE_P(Grid, MpiSharedBlocks,
                         ::testing::Values(Case{"ddp", "fp64", 2}, Case{"zero1", "fp64", 4},
                                           Case{"zero3", "fp64", 8}, Case{"zero3", "bf16", 4}),
                         [](const auto& test) {
                           return test.param.placement + test.param.precision + "of" +
                                  std::to_string(test.param.ranks);
                         });

/// Chunks lie one behind another in one window.
TEST(MpiTiles, GiveTheBitsAndBytesOfThreadRanks) {
  for (const char* precision : {"fp64", "bf16"})
    test::expect_processes_to_train_as_threads(
        {"placement.preset=zero3", "mesh.axes.x=2", "tensor.tiles=on:4",
         std::string("train.precision=") + precision, "train.global_batch_size=24",
         "train.micro_batch_size=3", "train.steps=6", "model.shape.dropout=0.1",
         "model.shape.vocabulary=24"},
        4);
}

/// Rows are scattered and gathered in windows.
TEST(MpiSplitRows, GiveTheBitsAndBytesOfThreadRanks) {
  for (const char* precision : {"fp64", "bf16"})
    test::expect_processes_to_train_as_threads(
        {"placement.preset=zero3", "mesh.axes.x=2", "tensor.sequence_parallel=true",
         std::string("train.precision=") + precision, "train.global_batch_size=24",
         "train.micro_batch_size=2", "train.steps=6", "model.shape.dropout=0.1",
         "model.shape.vocabulary=24"},
        4);
}

/// Shards lie in one window, chunk by chunk, and come by shifts that skip ranks.
TEST(MpiShards, GiveTheBitsAndBytesOfThreadRanks) {
  for (const auto& [x, data] : {std::pair(2, 2), {4, 1}})
    for (const char* precision : {"fp64", "bf16"})
      test::expect_processes_to_train_as_threads(
          {"placement.preset=zero3", "mesh.axes.x=" + std::to_string(x), "tensor.tiles=on:2",
           "tensor.sequence_parallel=true", std::string("train.precision=") + precision,
           "train.global_batch_size=24", "train.micro_batch_size=4", "train.steps=6",
           "model.shape.heads=4", "model.shape.kv_heads=4", "model.shape.ffn_width=40",
           "model.shape.dropout=0.1", "model.shape.vocabulary=24"},
          x * data);
}

TEST(MpiSharedSequences, GiveTheBitsAndBytesOfThreadRanks) {
  const std::string documents = "data.document_separator=.\n", none = "data.document_separator=";
  for (const auto& [engine, separator] :
       {std::pair("gathered", documents), {"ring", documents}, {"heads", none}})
    for (const char* precision : {"fp64", "bf16"})
      test::expect_processes_to_train_as_threads(
          {"placement.preset=zero3", "mesh.axes.sequence=2",
           std::string("sequence.engine=") + engine, std::string("train.precision=") + precision,
           "train.global_batch_size=24", "train.micro_batch_size=3", "train.steps=6",
           "model.shape.context=16", "model.shape.dropout=0.1", separator},
          4);
}

TEST(MpiHeadsInRings, GiveTheBitsAndBytesOfThreadRanks) {
  for (const char* precision : {"fp64", "bf16"})
    test::expect_processes_to_train_as_threads(
        {"placement.preset=zero3", "mesh.axes.sequence=4", "sequence.engine=heads_ring",
         "sequence.head_ranks=2", std::string("train.precision=") + precision,
         "train.global_batch_size=24", "train.micro_batch_size=3", "train.steps=6",
         "model.shape.context=16", "model.shape.dropout=0.1", "data.document_separator=.\n"},
        4);
}

/// Whichever ranks a plan makes neighbours of.
TEST(MpiPlannedDocuments, GiveTheBitsAndBytesOfThreadRanks) {
  for (const char* engine : {"zeppelin", "even"})
    for (const char* precision : {"fp64", "bf16"})
      test::expect_processes_to_train_as_threads(
          {"placement.preset=zero3", "mesh.axes.sequence=4",
           std::string("sequence.engine=") + engine, std::string("train.precision=") + precision,
           "train.global_batch_size=12", "train.global_batch_tokens=300", "train.steps=6",
           "model.shape.context=60", "sequence.capacity_tokens=90", "data.document_separator=.\n"},
          4);
}

}  // namespace
}  // namespace strait
