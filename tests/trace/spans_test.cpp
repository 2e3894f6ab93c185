// The recorder, the timeline that Perfetto reads, and the price of a span.
#include "strait/trace/spans.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "strait/base/clock.h"
#include "strait/base/json.h"
#include "tests/sanitized.h"

namespace strait::trace {
namespace {

TEST(Recorder, KeepsAllSpansOnlyWhileRecording) {
  Recorder recorder;
  const int name = recorder.name("gather");
  recorder.add(name, 1, {0, 1}, 0);
  recorder.record_all(true);
  for (int64_t step = 1; step <= 1500; ++step) recorder.add(name, 1, {0, 1}, step);
  recorder.record_all(false);
  recorder.add(name, 1, {0, 1}, 9999);
  ASSERT_EQ(recorder.spans().size(), 1500u);
  EXPECT_EQ(recorder.spans().front().step, 1);
  EXPECT_EQ(recorder.spans().back().step, 1500);
}

TEST(Recorder, InternsNames) {
  Recorder recorder;
  const int forward = recorder.name("forward"), backward = recorder.name("backward");
  EXPECT_NE(forward, backward);
  EXPECT_EQ(recorder.name("forward"), forward);
  EXPECT_EQ(recorder.names()[backward], "backward");
}

TEST(ChromeTrace, IsJsonWithOneProcessPerRankAndOneRowPerStream) {
  Recorder zero, one;
  zero.record_all(true);
  one.record_all(true);
  zero.add(zero.name("x[1] = forward \"block\" 0"), 0, {100.0, 100.25}, 3);
  one.add(one.name("W = all_gather(w)"), 1, {100.5, 100.75}, 4);
  const Json trace = Json::parse(
      chrome_trace({{0, &zero, {"compute"}}, {4, &one, {"compute", "world.0"}}}), "trace");
  std::vector<const Json*> spans, processes, rows;
  for (const Json& event : trace.at("traceEvents").as_array()) {
    const std::string phase = event.at("ph").as_string(), name = event.at("name").as_string();
    if (phase == "X") spans.push_back(&event);
    if (name == "process_name") processes.push_back(&event);
    if (name == "thread_name") rows.push_back(&event);
  }
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(processes.size(), 2u);
  EXPECT_EQ(processes[1]->at("args").at("name").as_string(), "rank 4");
  ASSERT_EQ(rows.size(), 3u) << "ranks may have streams of their own";
  EXPECT_EQ(rows[2]->at("args").at("name").as_string(), "world.0");
  EXPECT_EQ(spans[0]->at("name").as_string(), "x[1] = forward \"block\" 0");
  EXPECT_EQ(spans[0]->at("pid").as_integer(), 0);
  EXPECT_EQ(spans[0]->at("tid").as_integer(), 0);
  EXPECT_DOUBLE_EQ(spans[0]->at("ts").as_number(), 0.0);
  EXPECT_DOUBLE_EQ(spans[0]->at("dur").as_number(), 250000.0);
  EXPECT_EQ(spans[1]->at("pid").as_integer(), 4);
  EXPECT_EQ(spans[1]->at("tid").as_integer(), 1);
  EXPECT_DOUBLE_EQ(spans[1]->at("ts").as_number(), 500000.0);
  EXPECT_EQ(spans[1]->at("args").at("step").as_integer(), 4);
}

TEST(ChromeTrace, OfNothingIsStillJson) {
  EXPECT_EQ(Json::parse(chrome_trace({}), "trace").at("traceEvents").size(), 0u);
}

// Bound: 100 ns per span in the best of 50 batches, which a machine busy with other work still
// reaches; an optimised build takes a few ns.
TEST(Recorder, ASpanCostsLessThan100Nanoseconds) {
  Recorder recorder;
  const int name = recorder.name("forward");
  double best = 1e9;
  for (int batch = 0; batch < 50; ++batch) {
    const double begin = now_seconds();
    for (int64_t k = 0; k < 1000; ++k) recorder.add(name, 0, {begin, begin}, k);
    best = std::min(best, (now_seconds() - begin) / 1000);
  }
  EXPECT_LT(best, 100e-9 * test::kSlowdown);
}

}  // namespace
}  // namespace strait::trace
