// Pipelines of processes: the bits and bytes of those of threads, which equal one rank.
#include <gtest/gtest.h>

#include "tests/app/program.h"

namespace strait {
namespace {

using test::Child;
using test::TemporaryFolder;

struct Case {
  std::string placement;
  int64_t stages, ranks;
};

class MpiPipeline : public ::testing::TestWithParam<Case> {};

TEST_P(MpiPipeline, GivesTheBitsAndBytesOfThreadRanks) {
  const Case c = GetParam();
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path()), log = folder.path() + "/log";
  const auto arguments = [&](const std::string& name) {
    return std::vector<std::string>{"train",  run_file,
                                    "--set",  "output.run_dir=" + folder.path() + "/" + name,
                                    "--set",  "placement.preset=" + c.placement,
                                    "--set",  "mesh.axes.stage=" + std::to_string(c.stages),
                                    "--set",  "train.global_batch_size=24",
                                    "--set",  "train.micro_batch_size=3",
                                    "--set",  "train.steps=6",
                                    "--json", folder.path() + "/" + name + ".json"};
  };
  std::vector<std::string> threads = arguments("threads");
  threads.insert(threads.end(), {"--ranks", std::to_string(c.ranks)});
  ASSERT_EQ(Child(threads, log).wait(), 0) << read_file(log);
  ASSERT_EQ(Child(arguments("mpi"), log, test::mpirun(c.ranks)).wait(), 0) << read_file(log);
  const auto report = [&](const std::string& name) {
    const std::string path = folder.path() + "/" + name + ".json";
    return Json::parse(read_file(path), path);
  };
  const Json want = report("threads"), got = report("mpi");
  EXPECT_EQ(got.at("backend").as_string(), "mpi");
  for (const char* key : {"parameter_hash", "losses", "validation", "bytes_per_step", "state_bytes",
                          "allocator_peak_bytes"})
    EXPECT_EQ(got.at(key).dump(), want.at(key).dump()) << key;
}

INSTANTIATE_TEST_SUITE_P(Grid, MpiPipeline,
                         ::testing::Values(Case{"ddp", 2, 2}, Case{"zero1", 2, 4},
                                           Case{"zero3", 2, 4}, Case{"zero3", 2, 8}),
                         [](const auto& test) {
                           return test.param.placement + "of" + std::to_string(test.param.ranks);
                         });

}  // namespace
}  // namespace strait
