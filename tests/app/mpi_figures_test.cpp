// What a run among processes reports of itself: seconds that add up, bytes by the way that they
// took.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "strait/report/metrics.h"
#include "tests/app/mpi_job.h"

namespace strait {
namespace {

/// The system's clock at each event of a TensorBoard file: records of length (8 bytes), its
/// checksum (4), data, checksum (4); the first member of an event is tag 9 and the time as a
/// double.
std::vector<double> event_times(const std::string& path) {
  constexpr size_t kHead = 12, kTail = 4;
  const std::string file = read_file(path);
  std::vector<double> times;
  for (size_t at = 0; at + kHead < file.size();) {
    uint64_t length = 0;
    std::memcpy(&length, file.data() + at, sizeof length);
    EXPECT_EQ(file[at + kHead], 9);
    std::memcpy(&times.emplace_back(), file.data() + at + kHead + 1, sizeof(double));
    at += kHead + length + kTail;
  }
  return times;
}

TEST(MpiClock, StepsAddUpToTheWallTime) {
  const test::TemporaryFolder folder;
  const std::string run_dir = folder.path() + "/run", log = folder.path() + "/log";
  test::Child child({"train", test::small_run_file(folder.path()), "--set",
                     "output.run_dir=" + run_dir, "--set", "train.steps=200"},
                    log, test::mpirun(2));
  ASSERT_EQ(child.wait(), 0) << read_file(log);
  std::vector<double> times;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir + "/tensorboard"))
    times = event_times(entry.path());
  ASSERT_EQ(times.size(), 201u);  // the first names the format
  double reported = 0;            // of step 2 to the last but one, which no evaluation follows
  for (const report::StepMetrics& metrics : report::read_metrics(run_dir + "/metrics.jsonl"))
    if (metrics.step > 1 && metrics.step < 200) reported += metrics.seconds;
  EXPECT_NEAR(reported / (times[199] - times[1]), 1, 0.01);
}

/// crossed_per_step of two ranks of zero3 on so many hosts, and the payload and metadata of all
/// levels.
std::array<int64_t, 3> crossed(int64_t hosts) {
  const test::TemporaryFolder folder;
  const std::string json = folder.path() + "/report.json";
  test::MpiJob job({"train", test::small_run_file(folder.path()), "--json", json, "--set",
                    "output.run_dir=" + folder.path() + "/run", "--set", "train.steps=4"},
                   2, folder.path(), false, STRAIT_BINARY_DIR "/strait",
                   {.recovery = false, .hosts = hosts});
  EXPECT_EQ(job.launcher().wait(), 0) << read_file(folder.path() + "/log");
  const Json report = Json::parse(read_file(json), json);
  int64_t all = 0;
  for (const Json& level : report.at("bytes_per_step").at("runtime").as_array())
    all += level.at("payload_bytes").as_integer() + level.at("metadata_bytes").as_integer();
  const Json& crossed = report.at("crossed_per_step");
  return {crossed.at("shared_memory_bytes").as_integer(), crossed.at("network_bytes").as_integer(),
          all};
}

TEST(MpiBytes, AreToldApartByWhetherTheyLeftTheHost) {
  const auto [shared, none, all] = crossed(1);
  EXPECT_EQ(none, 0);
  EXPECT_EQ(shared, all);
  EXPECT_GT(all, 0);
  const auto [nothing, network, same] = crossed(2);  // the same levels, which know no hosts
  EXPECT_EQ(nothing, 0);
  EXPECT_EQ(network, same);
  EXPECT_EQ(same, all);
}

}  // namespace
}  // namespace strait
