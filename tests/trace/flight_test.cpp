// The ring of operations, its texts, its files, and the verdict over files.
#include "strait/trace/flight_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "strait/base/file.h"

namespace strait::trace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// "y[<loop 3>] = f(x[<2 * loop 5 - 1>])".
OperationText sample_text() {
  OperationText text;
  text.pieces = {"y[", "] = f(x[", "])"};
  text.indices = {{0, 0, 1}, {-1, 1, 2}};
  text.loops = {3, 5};
  return text;
}

TEST(OperationText, FillsInTheLoops) {
  const OperationText text = sample_text();
  const std::vector<int64_t> loops = {9, 9, 9, 4, 9, 7};
  EXPECT_EQ(text.str(text.pick(loops)), "y[4] = f(x[13])");
  char out[9];
  EXPECT_EQ(text.write(text.pick(loops), out, sizeof(out)), 9u);
  EXPECT_EQ(std::string(out, 9), "y[4] = f(");
  EXPECT_EQ(OperationText().str({}), "");
}

TEST(FlightRecord, KeepsTheLastThousandOldestFirst) {
  for (const int64_t total : {0, 1, 999, 1000, 1001, 2500, 10000}) {
    FlightRecord record;
    const int operation = record.add({sample_text(), "compute", {}, 0});
    for (int64_t k = 0; k < total; ++k) {
      const FlightMark mark = record.issue(operation, k / 7, k % 7, {k, 1}, double(k) + 1);
      mark.begin(double(k) + 1.25);
      mark.end(double(k) + 1.5, k % 100 == 3);
    }
    const std::vector<FlightEntry> entries = record.entries();
    const int64_t kept = std::min<int64_t>(total, 1000);
    ASSERT_EQ(static_cast<int64_t>(entries.size()), kept);
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t k = total - kept + i;
      EXPECT_EQ(entries[i].number, k);
      EXPECT_EQ(entries[i].step, k / 7);
      EXPECT_EQ(entries[i].index, k % 7);
      EXPECT_EQ(entries[i].operation, "y[" + std::to_string(k) + "] = f(x[1])");
      EXPECT_EQ(entries[i].issued, double(k) + 1);
      EXPECT_EQ(entries[i].started, double(k) + 1.25);
      EXPECT_EQ(entries[i].ended, double(k) + 1.5);
      EXPECT_EQ(entries[i].state, k % 100 == 3 ? FlightState::kFailed : FlightState::kDone);
    }
  }
}

TEST(FlightRecord, AMarkWhoseSlotIsTakenWritesNothing) {
  FlightRecord record;
  const int operation = record.add({sample_text(), "world.0", {0, 1}, 64});
  const FlightMark old = record.issue(operation, 0, 0, {}, 1);
  for (int64_t k = 0; k < 5000; ++k) record.issue(operation, 0, k, {}, 2);
  old.begin(77);
  old.end(78, true);
  FlightMark().begin(1);  // an empty mark is harmless
  for (const FlightEntry& entry : record.entries()) {
    EXPECT_EQ(entry.state, FlightState::kIssued);
    EXPECT_EQ(entry.started, 0);
  }
}

TEST(FlightRecord, IsReadWhileItIsWritten) {
  FlightRecord record;
  const int operation = record.add({sample_text(), "compute", {}, 0});
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int64_t k = 0; !stop.load(); ++k)
      record.issue(operation, k, k, {k, k}, double(k) + 1).end(double(k) + 2, false);
  });
  for (int turn = 0; turn < 50; ++turn)
    for (const FlightEntry& entry : record.entries()) {
      ASSERT_EQ(entry.step, entry.number);
      ASSERT_EQ(entry.index, entry.number);
      ASSERT_EQ(entry.issued, double(entry.number) + 1);
      ASSERT_EQ(entry.operation, "y[" + std::to_string(entry.number) + "] = f(x[" +
                                     std::to_string(2 * entry.number - 1) + "])");
    }
  stop.store(true);
  writer.join();
}

class FlightFiles : public ::testing::Test {
 protected:
  FlightFiles()
      : run_dir_((std::filesystem::temp_directory_path() /
                  ("strait-flight-" + std::to_string(::getpid())))
                     .string()) {
    std::filesystem::create_directories(run_dir_);
  }
  ~FlightFiles() override { std::filesystem::remove_all(run_dir_); }
  const std::string run_dir_;
};

/// Rank `rank` of three that waits in collective 4 of communicator 0xfedcba9876543210.
FlightFile waiting_file(int64_t rank) {
  FlightFile file;
  file.rank = rank;
  file.ranks = 3;
  file.backend = "threads";
  file.reason = {"timeout", "after 1 s", {}};
  file.reason.place.rank = 1;
  file.reason.place.operation = "y = forward block 3(x)";
  file.reason.place.step = 12;
  file.wall_seconds = 1.75e9;
  file.monotonic_seconds = 101;
  LaneStanding lane;
  lane.communicator = 0xfedcba9876543210;
  lane.members = {0, 1, 2};
  lane.issued = 5;
  lane.number = 4;
  lane.turn = LaneStanding::Turn::kJoined;
  lane.kind = "all-gather";
  lane.place = {"W = all_gather(w)", 12, -1};
  lane.since = 100;
  file.standing.kind = Standing::Kind::kWaiting;
  file.standing.communicator = lane.communicator;
  file.standing.lanes = {lane};
  FlightEntry entry;
  entry.number = 8;
  entry.step = 12;
  entry.index = 3;
  entry.operation = "W = all_gather(w)";
  entry.stream = "world.0";
  entry.group = {0, 1, 2};
  entry.bytes = 4096;
  entry.state = FlightState::kRunning;
  entry.issued = 99.5;
  entry.started = 100;
  file.entries = {entry};
  return file;
}

FlightFile busy_file(int64_t rank) {
  FlightFile file = waiting_file(rank);
  file.standing.kind = Standing::Kind::kBusy;
  file.standing.place = {"y = forward block 3(x)", 12, 7};
  file.standing.since = 99;
  file.standing.lanes[0].turn = LaneStanding::Turn::kIdle;
  file.standing.lanes[0].issued = 4;
  return file;
}

TEST_F(FlightFiles, AreReadAsTheyWereWritten) {
  write_flight(run_dir_, waiting_file(0));
  write_flight(run_dir_, busy_file(2));
  EXPECT_TRUE(std::filesystem::exists(run_dir_ + "/flight/rank-00002.json"));
  const auto files = read_flight(run_dir_);
  ASSERT_EQ(files.size(), 3u);
  ASSERT_TRUE(files[0] && !files[1] && files[2]);
  EXPECT_EQ(to_json(*files[0]).dump(), to_json(waiting_file(0)).dump());
  EXPECT_EQ(to_json(*files[2]).dump(), to_json(busy_file(2)).dump());
  EXPECT_EQ(files[0]->standing.lanes[0].communicator, 0xfedcba9876543210);
  EXPECT_EQ(files[0]->entries[0].state, FlightState::kRunning);
  clear_flight(run_dir_);
  EXPECT_TRUE(read_flight(run_dir_).empty());
}

TEST_F(FlightFiles, TheVerdictNamesTheRankInCompute) {
  for (const int64_t rank : {0, 2}) write_flight(run_dir_, waiting_file(rank));
  write_flight(run_dir_, busy_file(1));
  const auto files = read_flight(run_dir_);
  const auto verdict = judge_flight(files);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_EQ(verdict->place.operation, "y = forward block 3(x)");
  EXPECT_THAT(verdict->waiting, ElementsAre(0, 2));
  const Json json = verdict_json(verdict, files);
  EXPECT_EQ(json.at("fault").as_string(), "busy");
  EXPECT_EQ(json.at("step").as_integer(), 12);
  EXPECT_EQ(json.at("records").as_integer(), 3);
  EXPECT_EQ(json.at("waiting").size(), 2u);
  EXPECT_DOUBLE_EQ(json.at("seconds").as_number(), 2.0);
}

TEST_F(FlightFiles, ARankWithoutARecordIsGone) {
  for (const int64_t rank : {0, 2}) {
    FlightFile file = waiting_file(rank);
    file.reason = {"request", "", {}};
    write_flight(run_dir_, file);
  }
  const auto files = read_flight(run_dir_);
  const auto verdict = judge_flight(files);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->fault, Fault::kMissing);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_EQ(verdict->place.operation, "W = all_gather(w)");
  EXPECT_EQ(verdict_json(verdict, files).at("records").as_integer(), 2);
}

TEST_F(FlightFiles, WhatTheOthersWereToldOfARankWithoutARecordStands) {
  FlightFile file = waiting_file(0);
  file.reason.place.rank = 1;
  file.reason.place.operation = "y = forward block 0(x)";
  file.reason.place.step = 11;
  write_flight(run_dir_, file);
  file = waiting_file(2);
  file.reason.place.rank = 0;  // not about the rank that is gone
  write_flight(run_dir_, file);
  const auto verdict = judge_flight(read_flight(run_dir_));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->fault, Fault::kMissing);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_EQ(verdict->place.operation, "y = forward block 0(x)");
  EXPECT_EQ(verdict->place.step, 11);
  EXPECT_NE(verdict->text.find("forward block 0"), std::string::npos);
  // What the rank says of itself may be a later failure of it.
  write_flight(run_dir_, waiting_file(2));
  file = waiting_file(0);
  file.reason = {"request", "", {}};
  write_flight(run_dir_, file);
  file = busy_file(1);
  file.reason = {"peer-lost", "lost", {}};
  file.reason.place.rank = 1;
  file.reason.place.operation = "something later";
  write_flight(run_dir_, file);
  EXPECT_EQ(judge_flight(read_flight(run_dir_))->place.operation, "y = forward block 3(x)");
}

TEST_F(FlightFiles, ARankThatOthersMetInFilesIsNamedByThem) {
  for (const int64_t rank : {0, 2}) {  // nobody waits on a communicator
    FlightFile file = waiting_file(rank);
    file.standing.lanes.clear();
    file.reason.place.operation = "save";
    write_flight(run_dir_, file);
  }
  const auto verdict = judge_flight(read_flight(run_dir_));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->fault, Fault::kMissing);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_EQ(verdict->place.operation, "save");
  EXPECT_EQ(verdict->place.step, 12);
  EXPECT_THAT(verdict->waiting, ElementsAre(0, 2));
  FlightFile own = busy_file(1);
  own.reason = {"request", "", {}};
  write_flight(run_dir_, own);
  EXPECT_EQ(judge_flight(read_flight(run_dir_))->fault, Fault::kSilent);
}

TEST_F(FlightFiles, NoRecordsMeanNoVerdict) {
  EXPECT_FALSE(judge_flight(read_flight(run_dir_)));
  EXPECT_TRUE(verdict_json(std::nullopt, {}).is_null());
}

TEST_F(FlightFiles, AFileThatIsNoRecordIsNamed) {
  write_flight(run_dir_, waiting_file(0));
  const std::string path = flight_path(run_dir_, 1);
  for (const std::string& text :
       {std::string("{"), std::string("{\"format\":\"strait.train/1\"}"), std::string("[]"),
        to_json(waiting_file(1)).dump().replace(30, 40, "")}) {
    std::ofstream(path) << text;
    try {
      read_flight(run_dir_);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank-00001.json"));
    }
  }
}

}  // namespace
}  // namespace strait::trace
