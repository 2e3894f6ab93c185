// A stage that is lost or stalls anywhere in its order: all others name its rank, what it was in,
// with micro-batch and direction, within the deadline.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "strait/base/clock.h"
#include "strait/trace/flight_file.h"
#include "tests/train/instances.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

constexpr double kDeadline = 1.0;
constexpr int kStrikes = 18;
constexpr int kAtOnce = 6;  // they wait most of the time

bool is_message(const std::string& text) {
  return text.find("send") != std::string::npos || text.find("receive") != std::string::npos;
}

/// What is lost of a rank of stage `stage`: a message of its order.
std::string draw(const Job& job, int64_t stage, int number) {
  std::vector<std::string> messages;
  for (const test::Instance& instance :
       test::instances_of(job.design.steady()[static_cast<size_t>(stage)]))
    if (instance.transfer && is_message(instance.text)) messages.push_back(instance.text);
  const RandomStream stream(19, "stage", static_cast<uint64_t>(number));
  return messages[stream.below(0, messages.size())];
}

/// Activations go to the next stage, gradients to the one before: every message says of which
/// micro-batch, and to or from which stage.
void expect_direction(const std::string& message, int64_t stage, int64_t stages) {
  const bool down = message.find(" activation of micro-batch ") != std::string::npos;
  EXPECT_TRUE(down || message.find(" gradient of micro-batch ") != std::string::npos) << message;
  const bool sends = message.find("send ") != std::string::npos;
  const int64_t peer = (stage + (down == sends ? 1 : stages - 1)) % stages;
  EXPECT_NE(message.find(fmt::format("{} stage {}", sends ? "to" : "from", peer)),
            std::string::npos)
      << message;
}

void strike_once(int number, const std::string& folder) {
  const std::vector<std::string> orders = {"1f1b", "interleaved", "zero-bubble-h1"};
  const std::string order = orders[static_cast<size_t>(number) % orders.size()];
  const int64_t stages = 2 + number / 3 % 2;
  Run run = test::small_run(
      folder, {"mesh.axes.stage=" + std::to_string(stages), "model.shape.layers=6",
               "pipeline.order=" + order,
               "pipeline.chunks_per_stage=" + std::string(order == "interleaved" ? "2" : "1"),
               "train.micro_batch_size=4", "train.steps=2",
               "runtime.deadline_seconds=" + std::to_string(kDeadline)});
  run.output.run_dir = folder + "/run" + std::to_string(number);
  const Job job = make_job(run, stages);
  const int64_t stage = number / 6 % stages;
  train::Hooks hooks;
  hooks.faults.lost_rank = stage;
  hooks.faults.lost_step = 2;
  hooks.faults.lost_operation = draw(job, stage, number);
  const std::string what = order + ", stage " + std::to_string(stage) + " of " +
                           std::to_string(stages) + " at " + hooks.faults.lost_operation;
  expect_direction(hooks.faults.lost_operation, stage, stages);
  const std::string position = fmt::format("rank {} is stage {} of {}", stage, stage, stages);
  const std::atomic<int> no_signal{0};
  train::Outcome outcome;
  try {
    train::train(job, {}, no_signal, outcome, hooks);
    ADD_FAILURE() << "nobody missed " << what;
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), 4) << what;
    EXPECT_EQ(error.place().rank, stage) << what << ": " << error.what();
    EXPECT_EQ(error.place().operation, hooks.faults.lost_operation) << what << ": " << error.what();
    EXPECT_EQ(error.place().step, 2) << what;
    EXPECT_NE(std::string(error.what()).find(position), std::string::npos) << error.what();
  }
  const auto files = trace::read_flight(run.output.run_dir);
  for (int64_t rank = 0; rank < stages; ++rank) {
    ASSERT_TRUE(files[static_cast<size_t>(rank)]) << what;
    if (rank == stage) continue;
    const ErrorPlace& place = files[static_cast<size_t>(rank)]->reason.place;
    EXPECT_EQ(place.rank, stage) << what << ", as told by rank " << rank;
    EXPECT_EQ(place.operation, hooks.faults.lost_operation) << what << ", as told by rank " << rank;
    const std::string& message = files[static_cast<size_t>(rank)]->reason.message;
    EXPECT_NE(message.find(position), std::string::npos) << message;
  }
  std::filesystem::remove_all(run.output.run_dir);
}

TEST(PipelineFaults, AllOthersNameTheStageItsMicroBatchAndTheDirection) {
  const test::TemporaryFolder folder;
  test::write_text(folder.path(), test::small_text(2000));
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kAtOnce; ++thread)
    threads.emplace_back([&] {
      for (int number = next++; number < kStrikes; number = next++)
        strike_once(number, folder.path());
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace strait
