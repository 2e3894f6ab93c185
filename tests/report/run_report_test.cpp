// `strait report`: figures against hand calculation, pictures drawn by gnuplot, its absence, bad
// folders.
#include "strait/report/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/report/metrics.h"
#include "strait/report/plots.h"
#include "strait/trace/flight_file.h"

namespace strait::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RunReportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ("run_report_" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Steps 1 to `count`: loss = step, 0.5 s each (the first five 10 s), evaluated every 4 steps.
  std::vector<StepMetrics> write_run(int64_t count) {
    std::vector<StepMetrics> steps;
    MetricsWriter writer(folder_ / "metrics.jsonl", 0);
    for (int64_t step = 1; step <= count; ++step) {
      StepMetrics metrics;
      metrics.step = step;
      metrics.loss = static_cast<double>(step);
      metrics.seconds = step <= 5 ? 10.0 : 0.5;
      metrics.compute_seconds = 0.8 * metrics.seconds;
      metrics.exposed_communication_seconds = 0.05 * metrics.seconds;
      metrics.tokens_per_second = 1024 / metrics.seconds;
      metrics.model_flops_utilization = 0.4;
      metrics.bytes_per_level = {{"world", step % 2 == 0 ? 30000000 : 41200000}};
      metrics.memory_bytes = 1000000 * step;
      metrics.resident_bytes = 2000000 * step;
      metrics.predicted_seconds = 0.48;
      if (step % 4 == 0) metrics.validation_loss = std::abs(static_cast<double>(step) - 8.0) + 3.0;
      writer.append(metrics);
      steps.push_back(metrics);
    }
    return steps;
  }

  /// Other metrics instead of those of write_run.
  void rewrite(const std::vector<StepMetrics>& steps) {
    MetricsWriter writer(folder_ / "metrics.jsonl", 0);
    for (const StepMetrics& metrics : steps) writer.append(metrics);
  }

  std::string text(const std::string& name) { return read_file(folder_ / name); }

  std::filesystem::path folder_;
};

int64_t lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST_F(RunReportTest, FiguresAgainstHandCalculation) {
  write_run(120);
  const RunReport report = report_run(folder_);
  const Json& summary = report.summary;
  EXPECT_EQ(summary.at("steps").as_integer(), 120);
  EXPECT_EQ(summary.at("last_step").as_integer(), 120);
  EXPECT_DOUBLE_EQ(summary.at("train_loss").as_number(), 70.5);  // mean of 21 .. 120
  EXPECT_DOUBLE_EQ(summary.at("validation_loss").as_number(), 115.0);
  EXPECT_DOUBLE_EQ(summary.at("best_validation_loss").as_number(), 3.0);
  EXPECT_EQ(summary.at("best_validation_step").as_integer(), 8);
  EXPECT_DOUBLE_EQ(summary.at("seconds_per_step").at("max").as_number(), 0.5);  // no warm-up
  EXPECT_EQ(summary.at("seconds_per_step").at("count").as_integer(), 115);
  EXPECT_NEAR(summary.at("compute_share").as_number(), 0.8, 1e-12);  // 115 additions
  EXPECT_NEAR(summary.at("exposed_communication_share").as_number(), 0.05, 1e-12);
  EXPECT_NEAR(summary.at("tokens_per_second").as_number(), 2048, 1e-8);
  EXPECT_NEAR(summary.at("model_flops_utilization").as_number(), 0.4, 1e-12);
  EXPECT_DOUBLE_EQ(summary.at("predicted_seconds_per_step").as_number(), 0.48);
  EXPECT_EQ(summary.at("bytes_per_step").dump(),
            R"([{"level": "world", "payload_bytes": 35600000}])");
  EXPECT_EQ(summary.at("peak_memory_bytes").as_integer(), 120000000);
  EXPECT_TRUE(summary.at("plots_error").is_null());
  EXPECT_EQ(summary.at("plots").size(), 4u);
  for (const char* part :
       {"loss 70.5000, mean of the last 100 steps", "best 3.0000 after step 8", "500 ms median",
        "predicted 480 ms", "80.0 % compute", "5.0 % exposed communication, 15.0 % other",
        "2,048 tokens/s", "35.6 MB per step over world",
        "120 MB at the peak of rank 0's allocator; 240 MB resident"}) {
    EXPECT_THAT(report.text, HasSubstr(part));
  }
}

TEST_F(RunReportTest, StepsLeftOutAreCounted) {
  std::vector<StepMetrics> steps = write_run(8);
  EXPECT_EQ(report_run(folder_).summary.at("steps_skipped").as_integer(), 0);
  EXPECT_THAT(report_run(folder_).text, Not(HasSubstr("left out")));
  steps[2].skipped = steps[7].skipped = true;
  rewrite(steps);
  const RunReport report = report_run(folder_);
  EXPECT_EQ(report.summary.at("steps_skipped").as_integer(), 2);
  EXPECT_THAT(report.text, HasSubstr("8, the last is 8; 2 left out: loss or gradient not finite"));
}

TEST_F(RunReportTest, ShortRunsCountEveryStepAndNeedNoEvaluation) {
  write_run(3);
  const RunReport report = report_run(folder_);
  EXPECT_EQ(report.summary.at("seconds_per_step").at("count").as_integer(), 3);
  EXPECT_DOUBLE_EQ(report.summary.at("train_loss").as_number(), 2.0);
  EXPECT_EQ(report.summary.at("validation_loss").dump(), "null");
  EXPECT_TRUE(report.summary.at("best_validation_step").is_null());
  EXPECT_TRUE(report.summary.at("plots_error").is_null()) << report.text;
}

TEST_F(RunReportTest, PicturesAreWholeAndHoldEveryCurve) {
  for (const int64_t count : {1, 2, 50, 400, 401, 3000}) {
    const auto pictures = draw_plots(write_run(count), folder_ / "report");
    ASSERT_EQ(pictures.size(), 4u);
    for (const std::string& path : pictures) {
      const std::string content = read_file(path);
      if (path.ends_with(".png")) {
        EXPECT_EQ(content.substr(0, 8), "\x89PNG\r\n\x1a\n") << path;
        EXPECT_THAT(content.substr(content.size() - 12), HasSubstr("IEND")) << path;
      } else {
        EXPECT_THAT(content, HasSubstr("</svg>")) << path;
      }
    }
    if (count > 1) {  // gnuplot notes the empty range of a single loss
      EXPECT_EQ(text("report/gnuplot.log"), "") << count;
    }
    for (const char* label : {"Loss (nats per token)", ">training<", "Optimizer step"}) {
      EXPECT_THAT(text("report/loss.svg"), HasSubstr(label));
    }
    EXPECT_EQ(text("report/loss.svg").find(">validation<") != std::string::npos, count >= 4);
    for (const char* label :
         {"Time per step (ms)", ">compute<", ">exposed communication<", ">predicted<"}) {
      EXPECT_THAT(text("report/time.svg"), HasSubstr(label));
    }
    const int64_t points = lines_of(text("report/time.tsv")) - 1;
    EXPECT_LE(points, 400);
    EXPECT_GE(points, std::min<int64_t>(count, 200));
  }
}

TEST_F(RunReportTest, AFolderThatCannotBeWrittenCostsPageAndPicturesAlone) {
  write_run(20);
  std::ofstream(folder_ / "report") << "a file where the folder of pictures would be";
  std::filesystem::create_directories(folder_ / "report.html" / "in the way");
  const RunReport report = report_run(folder_);
  EXPECT_EQ(report.summary.at("steps").as_integer(), 20);
  EXPECT_TRUE(report.summary.at("page").is_null());
  EXPECT_THAT(report.summary.at("page_error").as_string(), HasSubstr("-o FOLDER"));
  EXPECT_EQ(report.summary.at("plots").size(), 0u);
  EXPECT_THAT(report.text, HasSubstr("Page        none: "));
}

TEST_F(RunReportTest, AnotherFolderTakesPageAndPictures) {
  write_run(20);
  const std::filesystem::path other = folder_ / "elsewhere";
  const RunReport report = report_run(folder_, {.folder = other});
  EXPECT_EQ(report.summary.at("page").as_string(), other / "report.html");
  EXPECT_TRUE(std::filesystem::exists(other / "report" / "loss.svg"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "report"));
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THROW(report_run(folder_, {.folder = folder_ / "file"}), InputOutputError);
}

TEST_F(RunReportTest, TablesHoldMeansOfGroups) {
  draw_plots(write_run(801), folder_ / "report");  // groups of 3
  const std::string loss = text("report/loss.tsv");
  EXPECT_THAT(loss, HasSubstr("\n2\t2\t"));      // steps 1 to 3
  EXPECT_THAT(loss, HasSubstr("\n800\t800\t"));  // steps 799 to 801
  // Steps 4 to 6 take 10 + 10 + 0.5 s: 80 % compute, 85 % with communication, all; milliseconds.
  EXPECT_THAT(text("report/time.tsv"), HasSubstr("\n5\t5466.67\t5808.33\t6833.33\t480\n"));
  EXPECT_THAT(text("report/time.tsv"), HasSubstr("\n8\t400\t425\t500\t480\n"));
}

TEST_F(RunReportTest, UnknownTimesStillGiveAPicture) {
  std::vector<StepMetrics> steps = write_run(20);
  for (StepMetrics& metrics : steps) {
    metrics.predicted_seconds = kUnknown;
    if (metrics.step > 10)
      metrics.compute_seconds = metrics.exposed_communication_seconds = kUnknown;
  }
  draw_plots(steps, folder_ / "report");
  EXPECT_EQ(text("report/gnuplot.log"), "");
  EXPECT_THAT(text("report/time.svg"), ::testing::Not(HasSubstr(">predicted<")));
}

TEST_F(RunReportTest, ShareAndSpeedAreOfTheStepsThatTellThem) {
  std::vector<StepMetrics> steps = write_run(20);
  steps[6].compute_seconds = steps[7].tokens_per_second = kUnknown;
  steps[8].seconds = kUnknown;
  rewrite(steps);
  const RunReport report = report_run(folder_);
  EXPECT_NEAR(report.summary.at("compute_share").as_number(), 0.8, 1e-12);
  EXPECT_NEAR(report.summary.at("exposed_communication_share").as_number(), 0.05, 1e-12);
  EXPECT_NEAR(report.summary.at("tokens_per_second").as_number(), 2048, 1e-8);
  EXPECT_THAT(report.text, HasSubstr("80.0 % compute, 5.0 % exposed communication, 15.0 % other"));
}

TEST_F(RunReportTest, FiguresWithoutDataAreLeftOut) {
  std::vector<StepMetrics> steps = write_run(20);
  for (StepMetrics& metrics : steps) metrics.seconds = kUnknown;
  rewrite(steps);
  const RunReport timeless = report_run(folder_);
  EXPECT_TRUE(timeless.summary.at("plots_error").is_null()) << timeless.text;
  EXPECT_THAT(timeless.summary.at("plots").dump(),
              AllOf(HasSubstr("loss.svg"), HasSubstr("loss.png"), Not(HasSubstr("time."))));
  EXPECT_THAT(timeless.text, HasSubstr("/report/loss.{svg,png}"));
  EXPECT_THAT(text("report.html"),
              AllOf(HasSubstr("<h2>Loss"), HasSubstr("<h2>Memory of"),
                    Not(HasSubstr("<h2>Throughput")), Not(HasSubstr("<h2>Time per step"))));
  for (StepMetrics& metrics : steps) metrics.loss = metrics.validation_loss = kUnknown;
  rewrite(steps);
  const RunReport nothing = report_run(folder_);
  EXPECT_THAT(nothing.text, HasSubstr("Plots       none: no step tells its loss or its seconds"));
  EXPECT_EQ(nothing.summary.at("plots").size(), 0u);
  EXPECT_THAT(text("report.html"), AllOf(Not(HasSubstr("<h2>Loss")), HasSubstr("<h2>Memory of")));
}

TEST_F(RunReportTest, WithoutGnuplotTheReportStillComes) {
  write_run(10);
  const RunReport missing = report_run(folder_, {.gnuplot = "no-such-gnuplot"});
  EXPECT_EQ(missing.summary.at("steps").as_integer(), 10);
  EXPECT_EQ(missing.summary.at("plots").size(), 0u);
  EXPECT_THAT(missing.summary.at("plots_error").as_string(), HasSubstr("install gnuplot"));
  EXPECT_THAT(missing.text, HasSubstr("no-such-gnuplot"));
  const RunReport failing = report_run(folder_, {.gnuplot = "false"});
  EXPECT_THAT(failing.summary.at("plots_error").as_string(), HasSubstr("false failed"));
}

TEST_F(RunReportTest, BadFolders) {
  EXPECT_THROW(report_run(folder_ / "none"), UserError);
  EXPECT_THROW(report_run(folder_), UserError);
  std::ofstream(folder_ / "metrics.jsonl") << R"({"step": 1, )";
  try {
    report_run(folder_);
    ADD_FAILURE() << "accepted a run without a whole step";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no whole step"));
    EXPECT_EQ(error.place().file, folder_ / "metrics.jsonl");
  }
  EXPECT_THROW(draw_plots({}, folder_), UserError);
  std::ofstream(folder_ / "report") << "a file where the folder should be";
  EXPECT_THROW(draw_plots(write_run(2), folder_ / "report"), InputOutputError);
}

/// Two of three ranks wait, in step 12, for rank 1, which is inside a forward.
void write_hang(const std::string& run_dir, bool with_rank_one) {
  for (const int64_t rank : {0, 1, 2}) {
    if (rank == 1 && !with_rank_one) continue;
    trace::FlightFile file;
    file.rank = rank;
    file.ranks = 3;
    file.reason.kind = rank == 0 ? "timeout" : "peer-lost";
    file.reason.message = "told";
    file.monotonic_seconds = 50;
    trace::LaneStanding lane;
    lane.communicator = 9;
    lane.members = {0, 1, 2};
    lane.kind = "all-reduce";
    lane.place = {"g = all_reduce(G)", 12, -1};
    lane.turn = rank == 1 ? trace::LaneStanding::Turn::kIdle : trace::LaneStanding::Turn::kJoined;
    lane.issued = rank == 1 ? 0 : 1;
    file.standing.kind = rank == 1 ? trace::Standing::Kind::kBusy : trace::Standing::Kind::kWaiting;
    file.standing.communicator = 9;
    file.standing.place = {"y = forward block 1(x)", 12, 3};
    file.standing.lanes = {lane};
    trace::write_flight(run_dir, file);
  }
}

TEST_F(RunReportTest, WithoutRecordsTheVerdictIsNull) {
  write_run(2);
  const RunReport report = report_run(folder_, {.gnuplot = "no-gnuplot"});
  EXPECT_TRUE(report.summary.at("verdict").is_null());
  EXPECT_EQ(report.summary.at("failures").size(), 0u);
  EXPECT_EQ(report.text.find("Verdict"), std::string::npos);
}

TEST_F(RunReportTest, TheVerdictNamesRankOperationStepAndWhoWaits) {
  write_run(12);
  write_hang(folder_, true);
  const RunReport report = report_run(folder_, {.gnuplot = "no-gnuplot"});
  const Json& verdict = report.summary.at("verdict");
  EXPECT_EQ(verdict.at("rank").as_integer(), 1);
  EXPECT_EQ(verdict.at("operation").as_string(), "y = forward block 1(x)");
  EXPECT_EQ(verdict.at("step").as_integer(), 12);
  EXPECT_EQ(verdict.at("fault").as_string(), "busy");
  EXPECT_EQ(verdict.at("waiting").dump(), "[0, 2]");
  EXPECT_EQ(report.summary.at("steps").as_integer(), 12);
  EXPECT_EQ(report.summary.at("failures").size(), 3u);
  EXPECT_THAT(report.text, HasSubstr("Verdict     rank 1 fell behind first"));
}

TEST_F(RunReportTest, ARunThatHangsInItsFirstStepHasAVerdictToo) {
  write_hang(folder_, false);
  const RunReport report = report_run(folder_, {.gnuplot = "no-gnuplot"});
  EXPECT_EQ(report.summary.at("verdict").at("fault").as_string(), "missing");
  EXPECT_EQ(report.summary.at("verdict").at("rank").as_integer(), 1);
  EXPECT_EQ(report.summary.at("verdict").at("records").as_integer(), 2);
  EXPECT_EQ(report.summary.at("steps").as_integer(), 0);
  EXPECT_THAT(report.text, HasSubstr("2 of 3 ranks left one"));
}

/// A summary.json whose plan says other bytes and memory than were measured.
constexpr const char* kSummary = R"({"format": "strait.summary/1", "plan": {"total_steps": 120,
  "seconds_per_step": 0.48, "compute_seconds": 0.4, "exposed_communication_seconds": 0.03,
  "bytes_per_step": [{"level": "node", "payload_bytes": 0, "metadata_bytes": 0},
                     {"level": "world", "payload_bytes": 30000000, "metadata_bytes": 2000}],
  "memory": {"weights": 60000000, "secondary": 0, "gradients": 20000000, "optimizer": 20000000,
             "activations": 0, "buffers": 0, "total": 100000000}},
 "train": {"ranks": 4, "precision": "fp32", "placement": "zero2",
  "bytes_per_step": {
    "runtime": [{"level": "node", "payload_bytes": 0, "metadata_bytes": 0},
                {"level": "world", "payload_bytes": 33000000, "metadata_bytes": 2000}]},
  "traffic": [{"operation": "all-gather", "level": "world", "codec": "int8/2048",
               "payload_bytes": 33000000, "metadata_bytes": 2000, "count": 7}],
  "allocator_peak_bytes": [110000000, 120000000], "peak_resident_bytes": 500000000}})";

/// kSummary with `members` before `anchor`.
std::string summary_with(const std::string& anchor, const std::string& members) {
  std::string summary = kSummary;
  return summary.insert(summary.find(anchor), members);
}

/// The cells of the row of a table that begins with `first`.
std::string row_of(const std::string& page, const std::string& first) {
  const size_t begin = page.find("<tr><td>" + first + "</td>");
  return begin == std::string::npos ? "no row " + first
                                    : page.substr(begin, page.find("</tr>", begin) - begin);
}

TEST_F(RunReportTest, ThePageShowsPlanAgainstMeasured) {
  write_run(120);
  std::ofstream(folder_ / "summary.json") << kSummary;
  std::ofstream(folder_ / "run.toml") << "name = \"a<b&c\"\n";
  const RunReport report = report_run(folder_);
  EXPECT_EQ(report.summary.at("page").as_string(), folder_ / "report.html");
  const std::string page = text("report.html");
  EXPECT_THAT(page, HasSubstr("120 steps of 120 on 4 ranks, zero2, fp32"));
  EXPECT_THAT(page, HasSubstr("Complete; no rank left a record"));
  EXPECT_EQ(row_of(page, "compute"),
            "<tr><td>compute</td><td>400 ms</td><td>400 ms</td><td>0.0 %</td>");
  EXPECT_EQ(row_of(page, "whole step"),
            "<tr><td>whole step</td><td>480 ms</td><td>500 ms</td><td>+4.2 %</td>");
  EXPECT_EQ(row_of(page, "world, payload"),
            "<tr><td>world, payload</td><td>30.0 MB</td><td>33.0 MB</td><td>+10.0 %</td>");
  EXPECT_EQ(row_of(page, "world, metadata"),
            "<tr><td>world, metadata</td><td>2.00 kB</td><td>2.00 kB</td><td>equal</td>");
  EXPECT_EQ(row_of(page, "allocated, peak of a rank"),
            "<tr><td>allocated, peak of a rank</td><td>100 MB</td><td>120 MB</td><td>+20.0 %</td>");
  EXPECT_EQ(row_of(page, "of it weights"),
            "<tr><td>of it weights</td><td>60.0 MB</td><td></td><td></td>");
  EXPECT_THAT(row_of(page, "all-gather"), HasSubstr("<td>int8/2048</td><td>33.0 MB</td>"));
  EXPECT_THAT(page, HasSubstr("name = &quot;a&lt;b&amp;c&quot;"));
}

// A bar per layer: what it sends per element, what of the uniform setting is saved, what is more.
TEST_F(RunReportTest, ThePageShowsTheSettingsOfLayers) {
  write_run(20);
  std::ofstream(folder_ / "summary.json") << summary_with(
      "\"traffic\":",
      R"("compression": {"codec": "qsgd4/512", "adapt": "lgreco", "choices": [], "layers": [
      {"name": "blocks.0.qkv", "elements": 1000, "setting": "qsgd2/512", "bytes_per_step": 500,
       "uniform_bytes_per_step": 1000},
      {"name": "head<", "elements": 100, "setting": "qsgd8/512", "bytes_per_step": 200,
       "uniform_bytes_per_step": 100}]},
      )");
  report_run(folder_, {.gnuplot = "no-gnuplot"});
  const std::string page = text("report.html");
  EXPECT_THAT(page, HasSubstr("Settings per layer"));
  EXPECT_THAT(page, HasSubstr("700 B per step instead of 1.10 kB with qsgd4/512 everywhere."));
  const std::string saved = row_of(page, "blocks.0.qkv"), more = row_of(page, "head&lt;");
  EXPECT_THAT(saved, HasSubstr("<td>qsgd2/512</td>"));
  EXPECT_THAT(saved, HasSubstr("width:25.00%;background:var(--compute)"));
  EXPECT_THAT(saved, HasSubstr("width:25.00%;background:var(--plan)"));
  EXPECT_THAT(more, HasSubstr("width:50.00%;background:var(--compute)"));
  EXPECT_THAT(more, HasSubstr("width:50.00%;background:var(--exposed)"));
}

/// Two ranks: 30 and 10 tokens of documents of their own, 5 each of one between nodes.
Json plan_of_two_ranks() {
  const auto zone = [](const std::vector<int64_t>& tokens, const std::vector<int64_t>& pairs) {
    return Json::object({{"tokens", tokens}, {"pairs", pairs}});
  };
  return Json::object({{"ranks", Json::object({{"local", zone({30, 10}, {465, 55})},
                                               {"intra", zone({0, 0}, {0, 0})},
                                               {"inter", zone({5, 5}, {28, 27})}})},
                       {"predicted", Json::object({{"computing_slowest_seconds", 0.25}})},
                       {"measured", Json::object({{"computing_slowest_seconds", 0.5},
                                                  {"computing_mean_seconds", 0.375}})}});
}

TEST_F(RunReportTest, ThePlanOfTheLastBatchIsDrawn) {
  write_run(3);
  EXPECT_EQ(report_run(folder_).summary.at("plots").size(), 4);
  EXPECT_THAT(text("report.html"), Not(HasSubstr("Plan of a batch")));
  {
    MetricsWriter writer(folder_ / "metrics.jsonl", 3);
    StepMetrics metrics;
    metrics.step = 4;
    metrics.loss = 3;
    metrics.seconds = 0.5;
    metrics.sequence_plan = plan_of_two_ranks();
    writer.append(metrics);
    metrics.step = 5;  // as plans were told before: without ranks
    metrics.sequence_plan = Json::object({{"tokens", Json::object()}});
    writer.append(metrics);
  }
  const RunReport report = report_run(folder_);
  EXPECT_EQ(report.summary.at("plots").size(), 6);
  EXPECT_THAT(report.text, HasSubstr("/report/{loss,time,plan}.{svg,png}"));
  EXPECT_THAT(text("report/plan.tsv"), HasSubstr("\n0\t30\t30\t35\t465\t465\t493\n"
                                                 "1\t10\t10\t15\t55\t55\t82\n"));
  EXPECT_THAT(text("report/plan_batches.tsv"), HasSubstr("\n4\t0.25\t0.5\t0.375\n5\t?\t?\t?\n"));
  EXPECT_THAT(text("report/plan.svg"), HasSubstr("Plan of the batch of step 4"));
  EXPECT_THAT(text("report.html"), HasSubstr("Plan of a batch"));
}

TEST_F(RunReportTest, AnAssumedPredictionIsMarkedOnThePageItsFiguresAndInTheText) {
  write_run(120);
  std::ofstream(folder_ / "summary.json")
      << summary_with("\"total_steps\"", R"("prediction_note": " by preset frontier", )");
  const RunReport report = report_run(folder_);
  EXPECT_THAT(report.text, HasSubstr("predicted 480 ms by preset frontier"));
  EXPECT_THAT(text("report.html"), HasSubstr("Plan by preset frontier"));
  EXPECT_THAT(text("report.html"), HasSubstr(">predicted by preset frontier<"));
  EXPECT_THAT(text("report/time.svg"), HasSubstr(">predicted by preset frontier<"));
}

// gnuplot executes `system`, in the folder of the pictures.
TEST_F(RunReportTest, TextsOfASummaryAreNeitherCommandsNorHtml) {
  write_run(20);
  for (const char* trap : {"a'; system 'touch trap'; set ylabel '<b>",
                           "a'\nsystem 'touch trap'\nset ylabel '<b>", "it's <b>\\"}) {
    const std::string members =
        Json::object({{"loss_unit", trap}, {"prediction_note", trap}}).dump();
    std::ofstream(folder_ / "summary.json")
        << summary_with("\"total_steps\"", members.substr(1, members.size() - 2) + ", ");
    const RunReport report = report_run(folder_);
    EXPECT_TRUE(report.summary.at("plots_error").is_null()) << report.text;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "report" / "trap")) << trap;
    const std::string page = text("report.html");
    EXPECT_EQ(page.find("<b>", page.find("<h2>Loss")), std::string::npos) << trap;
  }
}

TEST_F(RunReportTest, ThePageNeedsNothingElseAndHoldsEveryFigure) {
  write_run(120);
  report_run(folder_);
  const std::string page = text("report.html");
  for (const char* part : {"<!doctype html>", "width=device-width", "prefers-color-scheme:dark"})
    EXPECT_THAT(page, HasSubstr(part));
  size_t figures = 0;
  for (size_t at = page.find("<svg"); at != std::string::npos; at = page.find("<svg", at + 1))
    ++figures;
  EXPECT_EQ(figures, 4u);
  for (const char* outside :
       {"src=", "<link", "<script", "@import", "url(http", "href=\"http", "<?xml"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  for (const char* curve : {">validation<", ">exposed<", ">predicted<", "Throughput"})
    EXPECT_THAT(page, HasSubstr(curve));
  // What is not known is a dash, and the bytes of metrics.jsonl stand in for those of the ledger.
  EXPECT_EQ(row_of(page, "world, payload"),
            "<tr><td>world, payload</td><td>–</td><td>35.6 MB</td><td>–</td>");
  EXPECT_THAT(page, HasSubstr("No rank left a record of a failure."));
}

TEST_F(RunReportTest, ThePageComesWithoutGnuplotAndWithoutSteps) {
  write_run(12);
  report_run(folder_, {.gnuplot = "no-such-gnuplot"});
  EXPECT_THAT(text("report.html"), HasSubstr("No figures: cannot start no-such-gnuplot"));
  EXPECT_THAT(text("report.html"), HasSubstr("Time by kind"));
  std::filesystem::remove(folder_ / "metrics.jsonl");
  write_hang(folder_, true);
  report_run(folder_);
  EXPECT_THAT(text("report.html"), HasSubstr("rank 1 fell behind first"));
  EXPECT_THAT(text("report.html"), HasSubstr("no whole step"));
}

TEST_F(RunReportTest, ADamagedSummaryCostsWhatItTells) {
  write_run(12);
  std::ofstream(folder_ / "summary.json") << "{";
  std::filesystem::create_directories(folder_ / "run.toml");
  const RunReport report = report_run(folder_, {.gnuplot = "no-gnuplot"});
  EXPECT_EQ(report.summary.at("steps").as_integer(), 12);
  EXPECT_EQ(report.summary.at("page").as_string(), folder_ / "report.html");
  EXPECT_THAT(report.summary.at("page_error").as_string(),
              AllOf(HasSubstr("summary.json"), HasSubstr("run.toml is a folder")));
  EXPECT_THAT(report.text, HasSubstr("report.html, incomplete: "));
  EXPECT_THAT(text("report.html"), HasSubstr("Time by kind"));
}

TEST_F(RunReportTest, MembersOfAnotherTypeAreUnknown) {
  write_run(12);
  std::ofstream(folder_ / "summary.json") << R"({"plan": {"loss_unit": 7, "prediction_note": [],
      "bytes_per_step": {"level": "world"}, "memory": 3},
      "train": {"traffic": {"a": 1}, "compression": {"layers": {"a": 1}}}})";
  const RunReport report = report_run(folder_);
  EXPECT_TRUE(report.summary.at("page_error").is_null()) << report.text;
  EXPECT_THAT(text("report.html"), HasSubstr("Loss (nats per token)"));
  EXPECT_EQ(row_of(text("report.html"), "world, payload"),
            "<tr><td>world, payload</td><td>–</td><td>35.6 MB</td><td>–</td>");
}

}  // namespace
}  // namespace strait::report
