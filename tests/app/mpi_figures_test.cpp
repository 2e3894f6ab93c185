// What a run among processes reports of itself: seconds that add up, bytes by the way that they
// took.
#include <gtest/gtest.h>

#include <cstring>

#include "strait/report/metrics.h"
#include "tests/app/mpi_job.h"
#include "tests/paths.h"

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

/// The seconds that a run reports for its steps, over those between the events of its first and
/// last but one.
void told_share(double& share) {
  const test::TemporaryFolder folder;
  const std::string run_dir = folder.path() + "/run", log = folder.path() + "/log";
  test::Child child({"train", test::small_run_file(folder.path()), "--set",
                     "output.run_dir=" + run_dir, "--set", "train.steps=200"},
                    log, test::mpirun(2));
  ASSERT_EQ(child.wait(), 0) << read_file(log);
  std::vector<double> times;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir + "/tensorboard"))
    times = event_times(entry.path());
  ASSERT_EQ(times.size(), 202u);  // the first two name the format and start the session
  double reported = 0;            // of step 2 to the last but one, which no evaluation follows
  for (const report::StepMetrics& metrics : report::read_metrics(run_dir + "/metrics.jsonl"))
    if (metrics.step > 1 && metrics.step < 200) reported += metrics.seconds;
  share = reported / (times[200] - times[2]);
}

TEST(MpiClock, StepsAddUpToTheWallTime) {
  double share = 0;
  // A rank that loses its core between the two clocks is off by that pause, but not every time.
  for (int run = 0; run < 10 && std::abs(share - 1) > 0.01; ++run)
    ASSERT_NO_FATAL_FAILURE(told_share(share));
  EXPECT_NEAR(share, 1, 0.01);
}

/// What two ranks of zero3 on so many hosts report of the bytes of a step.
struct Crossed {
  int64_t shared_memory = 0, network = 0;
  int64_t levels = 0;                                // payload and metadata of all levels
  int64_t bookkeeping = 0, bookkeeping_network = 0;  // of the run
  int64_t questions = 0;                             // all-reduces of the ranks outside of programs
};

Crossed crossed(int64_t hosts) {
  const test::TemporaryFolder folder;
  const std::string json = folder.path() + "/report.json";
  test::MpiJob job({"train", test::small_run_file(folder.path()), "--json", json, "--set",
                    "output.run_dir=" + folder.path() + "/run", "--set", "train.steps=4"},
                   2, folder.path(), false, test::in_build("strait"),
                   {.recovery = false, .hosts = hosts});
  EXPECT_EQ(job.launcher().wait(), 0) << read_file(folder.path() + "/log");
  const Json report = Json::parse(read_file(json), json);
  int64_t all = 0;
  for (const Json& level : report.at("bytes_per_step").at("runtime").as_array())
    all += level.at("payload_bytes").as_integer() + level.at("metadata_bytes").as_integer();
  const Json& crossed = report.at("crossed_per_step");
  const Json& bookkeeping = report.at("bookkeeping");
  int64_t questions = 0;
  for (const Json& row : bookkeeping.at("traffic").as_array())
    if (row.at("operation").as_string() == "all-reduce") questions += row.at("count").as_integer();
  return {crossed.at("shared_memory_bytes").as_integer(),
          crossed.at("network_bytes").as_integer(),
          all,
          bookkeeping.at("bytes").as_integer(),
          bookkeeping.at("network_bytes").as_integer(),
          questions};
}

TEST(MpiBytes, AreToldApartByWhetherTheyLeftTheHost) {
  const Crossed one = crossed(1);
  EXPECT_EQ(one.network, 0);
  EXPECT_EQ(one.shared_memory, one.levels);
  EXPECT_GT(one.levels, 0);
  EXPECT_EQ(one.bookkeeping_network, 0);
  const Crossed two = crossed(2);  // the same levels, which know no hosts
  EXPECT_EQ(two.shared_memory, 0);
  EXPECT_EQ(two.network, two.levels);
  EXPECT_EQ(two.levels, one.levels);
  EXPECT_EQ(two.bookkeeping_network, two.bookkeeping);
  EXPECT_EQ(two.bookkeeping, one.bookkeeping);
  // Both ranks ask before the first step, and after each of four, what all have sent.
  EXPECT_GE(two.questions, 2 * 5);
}

}  // namespace
}  // namespace strait
