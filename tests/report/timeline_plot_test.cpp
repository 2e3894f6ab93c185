// The picture of a timeline: whole, alone in its folder, with names that gnuplot would execute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/report/plots.h"

namespace strait::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TimelinePlotTest : public ::testing::Test {
 protected:
  TimelinePlotTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    recorder_.record_all(true);
    recorder_.add(recorder_.name("forward(x)"), 0, {0, 0.5}, 1);
    recorder_.add(recorder_.name("all_reduce(g)"), 1, {0.5, 0.75}, 1);
  }
  ~TimelinePlotTest() override { std::filesystem::remove_all(folder_); }

  int64_t files() const { return std::distance(std::filesystem::directory_iterator(folder_), {}); }

  std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / ("timeline_" + std::to_string(::getpid()));
  trace::Recorder recorder_;
  std::vector<std::string> streams_ = {"compute", "node's_link.0"};
};

TEST_F(TimelinePlotTest, OnlyThePictureIsWritten) {
  std::ofstream(folder_ / "it's.tsv") << "mine";
  draw_timeline(recorder_, streams_, folder_ / "it's.svg");
  draw_timeline(recorder_, streams_, folder_ / "it's.png");
  EXPECT_EQ(read_file(folder_ / "it's.tsv"), "mine");
  EXPECT_EQ(files(), 3);
  EXPECT_THAT(read_file(folder_ / "it's.svg"),
              AllOf(HasSubstr(">node's_link.0<"), HasSubstr("</svg>")));
  EXPECT_THAT(read_file(folder_ / "it's.png"), HasSubstr("IEND"));
}

TEST_F(TimelinePlotTest, AFailureLeavesTheOldPicture) {
  std::ofstream(folder_ / "old.png") << "old";
  for (const char* gnuplot : {"no-such-gnuplot", "false"})
    EXPECT_THROW(draw_timeline(recorder_, streams_, folder_ / "old.png", gnuplot), PlotterError);
  EXPECT_EQ(read_file(folder_ / "old.png"), "old");
  EXPECT_EQ(files(), 1);
  EXPECT_THROW(draw_timeline(recorder_, streams_, folder_ / "none" / "p.png"), InputOutputError);
  EXPECT_THROW(draw_timeline(recorder_, streams_, folder_ / "p.gif"), UserError);
  EXPECT_THROW(draw_timeline({}, streams_, folder_ / "p.png"), UserError);
}

TEST_F(TimelinePlotTest, EveryKindOfCommunicationHasItsColour) {
  const std::pair<const char*, const char*> kinds[] = {
      {"G.block[0] = all_to_all(S0.block[0]) [int8] on node.0", "all-to-all"},
      {"x[1] = shift(x[0]) on pair.1", "message"},
      {"send(x[0]) to 1 on world.0", "message"},
      {"x[0] = receive from 0 on world.0", "message"},
      {"w = broadcast(w) from 0 on world.0", "message"},
      {"E.block[0] = encode(w.block[0]) [int8/2048] on compute", "codec"},
      {"W, s = decode_sum(E.block[0]) on compute", "codec"},
      {"g += reduce_scatter(G) on pair.0", "reduction"},
      {"W = all_gather(w) on pair.0", "gather"}};
  for (const auto& [operation, title] : kinds) {
    trace::Recorder recorder;
    recorder.record_all(true);
    recorder.add(recorder.name(operation), 1, {0, 1}, 1);
    draw_timeline(recorder, streams_, folder_ / "kind.svg");
    const std::string picture = read_file(folder_ / "kind.svg");
    EXPECT_THAT(picture, HasSubstr(std::string(">") + title)) << operation;
    EXPECT_THAT(picture, Not(HasSubstr("other"))) << operation;
  }
}

TEST_F(TimelinePlotTest, OperandsDoNotTellTheKind) {
  trace::Recorder recorder;
  recorder.record_all(true);
  recorder.add(recorder.name("forward = load(backward.g, all_gather) on compute"), 0, {0, 1}, 1);
  draw_timeline(recorder, streams_, folder_ / "operands.svg");
  EXPECT_THAT(read_file(folder_ / "operands.svg"),
              AllOf(HasSubstr("other"), Not(HasSubstr("forward"))));
}

}  // namespace
}  // namespace strait::report
