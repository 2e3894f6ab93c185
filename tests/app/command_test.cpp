// The commands as a user runs them: every example trains, and reports hold the keys of INTERFACE.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "tests/app/program.h"
#include "tests/paths.h"

namespace strait {
namespace {

using test::run;
using test::TemporaryFolder;

void expect_keys(const Json& report, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) EXPECT_NE(report.find(key), nullptr) << "missing " << key;
}

/// The command that an example names in its first lines, and with how many ranks.
struct ExampleCommand {
  std::string verb = "train", ranks = "2";
};

ExampleCommand command_of(const std::filesystem::path& example) {
  const std::string text = read_file(example.string());
  ExampleCommand command;
  const size_t at = text.find("# ") == 0 ? text.find("strait ") : std::string::npos;
  const std::string line = at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  std::istringstream words(line);
  std::string word;
  words >> word >> command.verb;
  while (words >> word)
    if (word == "--ranks") words >> command.ranks;
  if (command.verb.empty()) command.verb = "train";
  return command;
}

TEST(Examples, EachDoesWhatItsFirstLinesSay) {
  const TemporaryFolder folder;
  const std::string text = test::write_text(folder.path(), test::small_text(30000));
  std::map<std::string, int> examples;
  for (const auto& entry : std::filesystem::directory_iterator(test::in_source("examples"))) {
    if (entry.path().extension() != ".toml") continue;
    const std::string name = entry.path().stem();
    const ExampleCommand command = command_of(entry.path());
    if (name == "modules") continue;  // below: its chain is written by Python
    ++examples[command.verb];
    std::vector<std::string> settings = {"--ranks", command.ranks};
    std::vector<std::string> sets;
    if (command.verb == "train") sets = {"train.steps=2", "evaluation.batches=1"};
    if (command.verb == "train" &&
        read_file(entry.path().string()).find("synthetic:") == std::string::npos)
      sets.push_back("data.path=" + text);
    for (const std::string& setting : sets) settings.insert(settings.end(), {"--set", setting});
    const auto with = [&](std::vector<std::string> words) {
      words.insert(words.end(), settings.begin(), settings.end());
      return words;
    };
    if (command.verb == "train") {
      const std::string run_dir = "output.run_dir=" + folder.path() + "/" + name;
      const auto trained = run(with({"train", entry.path(), "--set", run_dir}));
      EXPECT_EQ(trained.exit_code, 0) << name << ": " << trained.err;
    }
    for (const char* verb : {"simulate", "verify"}) {
      const auto answer = run(with({verb, entry.path()}));
      EXPECT_EQ(answer.exit_code, 0) << name << ": " << answer.err;
    }
  }
  EXPECT_GE(examples["train"], 5);
  EXPECT_EQ(examples["simulate"], 3);
}

TEST(Examples, AChainOfModulesAsksForItsFolder) {
  const std::string text = read_file(test::in_source("examples/modules.toml"));
  EXPECT_NE(text.find("tools/export_modules examples/modules_mixer.py:blocks"), std::string::npos);
  const auto refused = run({"verify", test::in_source("examples/modules.toml"), "--ranks", "2"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, testing::HasSubstr("model.path"));
}

/// Members of the report of `train`.
const std::vector<std::string> kTrainKeys = {"format",
                                             "ok",
                                             "exit_code",
                                             "error",
                                             "version",
                                             "commit",
                                             "machine",
                                             "ranks",
                                             "backend",
                                             "precision",
                                             "seed",
                                             "placement",
                                             "mesh",
                                             "parameters",
                                             "steps",
                                             "steps_this_process",
                                             "tokens",
                                             "tokens_per_step",
                                             "stopped_by",
                                             "train_loss",
                                             "validation_loss",
                                             "best_validation_loss",
                                             "validation_bits_per_byte",
                                             "losses",
                                             "validation",
                                             "seconds_per_step",
                                             "save_stall_seconds",
                                             "tokens_per_second",
                                             "model_flops_per_token",
                                             "peak_flops_per_second",
                                             "model_flops_utilization",
                                             "bytes_per_step",
                                             "traffic",
                                             "exposed_communication_share",
                                             "overlap",
                                             "predicted_seconds_per_step",
                                             "state_bytes",
                                             "peak_resident_bytes",
                                             "parameter_hash",
                                             "run_dir",
                                             "checkpoint",
                                             "resumed_from_step"};

TEST(Commands, TrainReportsWhatInterfaceNamesAndItsFilesAreThere) {
  const TemporaryFolder folder;
  const std::string run_dir = folder.path() + "/run";
  const auto ran = run({"train", test::small_run_file(folder.path()), "--ranks", "2", "--set",
                        "output.run_dir=" + run_dir, "--set", "output.timeline_steps=2", "--set",
                        "train.steps=12", "--set", "checkpoint.every_steps=5"},
                       folder.path() + "/report.json");
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  expect_keys(ran.report, kTrainKeys);
  EXPECT_EQ(ran.report.at("losses").size(), 12u);
  EXPECT_EQ(ran.report.at("seconds_per_step").at("count").as_integer(), 7);
  // After steps 5, 10 and 12.
  EXPECT_EQ(ran.report.at("save_stall_seconds").at("count").as_integer(), 3);
  EXPECT_GT(ran.report.at("save_stall_seconds").at("min").as_number(), 0);
  const Json& bytes = ran.report.at("bytes_per_step");
  EXPECT_EQ(bytes.at("runtime").dump(), bytes.at("simulated").dump());
  EXPECT_EQ(bytes.at("runtime").dump(), bytes.at("cost").dump());
  for (const char* file : {"/metrics.jsonl", "/run.toml", "/timeline.json",
                           "/checkpoints/step-00000012/manifest.json"})
    EXPECT_TRUE(std::filesystem::exists(run_dir + file)) << file;
  EXPECT_FALSE(std::filesystem::is_empty(run_dir + "/tensorboard"));
  const Json timeline = Json::parse(read_file(run_dir + "/timeline.json"), "timeline");
  EXPECT_GT(timeline.at("traceEvents").size(), 40u);
  EXPECT_THAT(ran.out, ::testing::HasSubstr("placement   zero3"));
}

TEST(Commands, TheResolvedRunFileRunsAgainToTheSameHash) {
  const TemporaryFolder folder;
  const std::string first = folder.path() + "/first";
  const auto one = run({"train", test::small_run_file(folder.path()), "--set",
                        "output.run_dir=" + first, "--set", "train.steps=5"},
                       folder.path() + "/a.json");
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const auto two =
      run({"train", first + "/run.toml", "--set", "output.run_dir=" + folder.path() + "/second"},
          folder.path() + "/b.json");
  ASSERT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(one.report.at("parameter_hash").as_string(),
            two.report.at("parameter_hash").as_string());
}

TEST(Commands, PlanChoosesAPolicyForALinkAndTheRunItWritesTrains) {
  const TemporaryFolder folder;
  const std::string best = folder.path() + "/best.toml";
  const auto planned =
      run({"plan", test::small_run_file(folder.path()), "--ranks", "2", "-o", best, "--set",
           "plan.utilization=0.9", "--set", "plan.search=sync", "--set",
           "cluster.levels=[{name=\"site\",size=0,gb_per_second=0.01,latency_microseconds=1.0}]"},
          folder.path() + "/plan.json");
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  for (const char* heading : {"utilization", "in flight", "loss, nats", "known at"})
    EXPECT_NE(planned.out.find(heading), std::string::npos) << heading;
  const Json& first = planned.report.at("candidates").as_array().front();
  EXPECT_GE(first.at("utilization").as_number(), 0.9);
  expect_keys(first, {"sync", "utilization", "peak_bytes_in_flight", "quality"});
  expect_keys(first.at("quality"), {"loss_gap_nats", "period_steps", "replicas", "parameters",
                                    "extrapolated", "source"});
  const auto trained = run({"train", best, "--ranks", "2", "--set", "train.steps=3", "--set",
                            "output.run_dir=" + folder.path() + "/run"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_NE(trained.out.find(first.at("sync").at("policy").as_string()), std::string::npos);
}

TEST(Commands, PlanSharesSequencesOfABatchSmallerThanItsRanksAndTheRunItWritesTrains) {
  const TemporaryFolder folder;
  const std::string best = folder.path() + "/best.toml";
  const auto planned = run({"plan", test::small_run_file(folder.path()), "--ranks", "4", "-o", best,
                            "--set", "plan.search=sequence", "--set", "model.shape.context=16",
                            "--set", "train.global_batch_size=2"},
                           folder.path() + "/plan.json");
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  for (const char* text :
       {"sequence 2, ring", "left out: sequence 4, heads: sequence.engine = \"heads\" cannot give",
        "left out: mesh of the run file: train.global_batch_size = 2"})
    EXPECT_NE(planned.out.find(text), std::string::npos) << text << " in\n" << planned.out;
  const Json& first = planned.report.at("candidates").as_array().front();
  const int64_t sharers = first.at("sequence").at("ranks").as_integer();
  EXPECT_EQ(first.at("mesh").at("sequence").as_integer(), sharers);
  EXPECT_GT(sharers, 1);
  const auto trained = run({"train", best, "--ranks", "4", "--set", "train.steps=3", "--set",
                            "output.run_dir=" + folder.path() + "/run"},
                           folder.path() + "/train.json");
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(trained.report.at("mesh").at("sequence").as_integer(), sharers);
}

TEST(Commands, PlanAndSimulateReadAHistogramOfLengths) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/lengths.csv";
  const std::vector<std::string> sets = {
      "train.global_batch_size=12",  // unset: that of the file is for windows
      "train.global_batch_tokens=4096",
      "model.shape.context=1024",
      "model.shape.dropout=0",
      "mesh.axes.sequence=4",
      "plan.search=sequence",
      "data.path=synthetic:lengths/histogram/tokens=50000/file=" + file,
      "cluster.levels=[{name=\"site\",size=0,gb_per_second=0.01,latency_microseconds=1.0}]"};
  const auto answer = [&](const std::string& command, const std::string& histogram) {
    std::ofstream(file) << histogram;
    std::vector<std::string> words = {command, test::small_run_file(folder.path()), "--ranks", "4"};
    for (const std::string& one : sets) words.insert(words.end(), {"--set", one});
    return run(words, folder.path() + "/" + command + ".json");
  };
  const auto engine_for = [&](const std::string& histogram) {
    const auto planned = answer("plan", histogram);
    EXPECT_EQ(planned.exit_code, 0) << planned.err;
    return planned.report.at("candidates").as_array().front().at("sequence").at("engine");
  };
  EXPECT_EQ(engine_for("60, 0\n100, 1\n").as_string(), "zeppelin");
  const auto seconds_of = [&](const std::string& histogram) {
    const auto simulated = answer("simulate", histogram);
    EXPECT_EQ(simulated.exit_code, 0) << simulated.err;
    return simulated.report.at("compute_seconds").as_number();
  };
  EXPECT_LT(seconds_of("20 1\n"), seconds_of("1000 0\n1024 1\n"));
  const auto wrong = answer("simulate", "100, 1\n50, 1\n");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("lengths.csv:2"), std::string::npos) << wrong.err;
}

TEST(Commands, SamplePlanSimulateInspectAndReportAnswer) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path()),
                    run_dir = folder.path() + "/run";
  ASSERT_EQ(run({"train", run_file, "--set", "output.run_dir=" + run_dir}).exit_code, 0);
  const auto sampled =
      run({"sample", run_dir, "--prompt", "strait ", "--tokens", "30", "--seed", "4"},
          folder.path() + "/sample.json");
  EXPECT_EQ(sampled.exit_code, 0) << sampled.err;
  EXPECT_EQ(sampled.report.at("tokens").as_integer(), 30);
  EXPECT_EQ(sampled.report.at("text").as_string().size(), 30u);
  const auto planned = run({"plan", run_file, "--ranks", "4"}, folder.path() + "/plan.json");
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  expect_keys(planned.report, {"ranks", "enumerated", "feasible", "wall_seconds", "bound_seconds",
                               "run_file", "rejected", "candidates"});
  double before = 0;
  for (const Json& candidate : planned.report.at("candidates").as_array()) {
    EXPECT_GE(candidate.at("seconds_per_step").as_number(), before);
    before = candidate.at("seconds_per_step").as_number();
  }
  const std::string best = folder.path() + "/best.toml";
  const auto written =
      run({"plan", run_file, "--ranks", "4", "-o", best}, folder.path() + "/w.json");
  EXPECT_EQ(written.report.at("run_file").as_string(), best);
  for (const char* heading : {"tokens/s", "MFU", "sent", "over world"})
    EXPECT_NE(written.out.find(heading), std::string::npos) << heading;
  const auto chosen = run({"simulate", best, "--ranks", "4"}, folder.path() + "/chosen.json");
  EXPECT_EQ(chosen.exit_code, 0) << chosen.err;
  const Json& first = written.report.at("candidates").as_array().front();
  EXPECT_EQ(chosen.report.at("seconds_per_step").as_number(),
            first.at("seconds_per_step").as_number());
  EXPECT_EQ(chosen.report.at("bytes_per_step").dump(), first.at("bytes_per_step").dump());
  const auto simulated =
      run({"simulate", run_file, "--ranks", "4", "--trace", folder.path() + "/t.json"},
          folder.path() + "/simulate.json");
  EXPECT_EQ(simulated.exit_code, 0) << simulated.err;
  expect_keys(simulated.report,
              {"ranks", "rank_classes", "events", "wall_seconds", "seconds_per_step",
               "compute_seconds", "exposed_communication_seconds", "exposed_communication_share",
               "bubble_share", "bytes_per_step", "memory", "tokens_per_second",
               "model_flops_utilization", "goodput", "trace"});
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/t.json"));
  EXPECT_EQ(run({"inspect", run_dir}).exit_code, 0);
  const auto reported = run({"report", run_dir}, folder.path() + "/report.json");
  EXPECT_EQ(reported.exit_code, 0) << reported.err;
  EXPECT_NE(run({"simulate", run_file, "--plot", folder.path() + "/p.gif"}).exit_code, 0);
  const auto undrawn = run({"simulate", run_file, "--plot", folder.path() + "/none/p.png"});
  EXPECT_EQ(undrawn.exit_code, 6) << undrawn.err;
  // The page has the plan and the ledger of the run's own summary.
  const std::string page = read_file(reported.report.at("page").as_string());
  for (const char* part :
       {"30 steps of 30", "<td>world, payload</td><td>0 B</td><td>0 B</td><td>equal</td>",
        "<td>of it weights</td>", "resident, sum of all processes"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

/// MEM of INTERFACE.
void expect_tiers(const Json& memory) {
  const Json& tiers = memory.at("tiers");
  EXPECT_GT(tiers.at("device").as_integer(), 0);
  EXPECT_GT(tiers.at("host").as_integer(), 0);  // scalars of the step at least
  EXPECT_EQ(tiers.at("disk").as_integer(), 0);
  EXPECT_EQ(tiers.at("device").as_integer() + tiers.at("host").as_integer(),
            memory.at("total").as_integer());
}

TEST(Commands, MemoryIsToldByTier) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path()), json = folder.path() + "/json";
  const auto trained = run({"train", run_file, "--ranks", "2", "--set", "train.steps=1", "--set",
                            "output.run_dir=" + folder.path() + "/run"},
                           json);
  EXPECT_EQ(trained.report.at("state_bytes").size(), 2u);
  for (const Json& rank : trained.report.at("state_bytes").as_array()) expect_tiers(rank);
  const auto simulated = run({"simulate", run_file, "--ranks", "2"}, json);
  for (const Json& of : simulated.report.at("memory").as_array()) expect_tiers(of);
  const auto planned = run({"plan", run_file, "--ranks", "2"}, json);
  for (const Json& one : planned.report.at("candidates").as_array()) expect_tiers(one.at("memory"));
}

TEST(Commands, TrainSaysHowManyDocumentsThereAre) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += "{\"text\": \"the strait is narrow and the tide is low\"}\n";
  write_file_atomically(folder.path() + "/d.jsonl", lines);
  for (const auto& [separator, says] :
       {std::pair("", ", 36 and 4 documents in one stream\n"), std::pair("|", " documents\n")}) {
    const auto ran = run({"train", run_file, "--ranks", "1", "--set", "train.steps=1", "--set",
                          "data.path=" + folder.path() + "/d.jsonl", "--set",
                          "data.document_separator=" + std::string(separator), "--set",
                          "output.run_dir=" + folder.path() + "/run" + separator});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.out, ::testing::HasSubstr(says));
  }
}

TEST(Commands, TrainingOnConvertedDataIsTrainingOnTheText) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const auto hash_of = [&](const std::string& name, const std::string& data) {
    const auto ran =
        run({"train", run_file, "--ranks", "2", "--set", "train.steps=4", "--set",
             "data.path=" + data, "--set", "output.run_dir=" + folder.path() + "/" + name},
            folder.path() + "/train.json");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return ran.report.at("parameter_hash").as_string();
  };
  const std::string wanted = hash_of("text", folder.path() + "/text.txt");
  for (const std::string form : {"llm.c", "megatron"}) {
    const std::string to = folder.path() + "/" + form;
    const auto converted = run({"convert", folder.path() + "/text.txt", to, "--to", form},
                               folder.path() + "/convert.json");
    ASSERT_EQ(converted.exit_code, 0) << converted.err;
    EXPECT_EQ(converted.report.at("to_form").as_string(), form);
    EXPECT_EQ(hash_of("run-" + form, to), wanted);
  }
  const auto unknown =
      run({"convert", folder.path() + "/text.txt", folder.path() + "/x", "--to", "llmc"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, ::testing::HasSubstr("the nearest is llm.c"));
  const auto useless = run({"convert", folder.path() + "/text.txt", folder.path() + "/x", "--to",
                            "megatron", "--shard-tokens", "5"});
  EXPECT_EQ(useless.exit_code, 2);
  EXPECT_THAT(useless.err, ::testing::HasSubstr("--shard-tokens has no effect"));
}

TEST(Commands, AMissingFolderIsFoundBeforeAnythingIsSearchedOrMeasured) {
  const TemporaryFolder folder;
  const std::string nowhere = folder.path() + "/nowhere";
  const std::string file = test::small_run_file(folder.path());
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"plan", file, "--ranks", "2", "-o", nowhere + "/best.toml"},
           {"probe", file, "--ranks", "2", "-o", nowhere + "/cluster.toml"}}) {
    const auto ran = run(command, folder.path() + "/report.json");
    EXPECT_EQ(ran.exit_code, 6) << ran.err;
    EXPECT_THAT(ran.err, ::testing::HasSubstr("there is no folder " + nowhere));
    EXPECT_EQ(ran.report.find("candidates"), nullptr);
  }
}

TEST(Commands, VerifyListsAllProblemsOfARunFile) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/run.toml")
      << "[train]\nsteps = -3\nprecision = \"fp33\"\n[optimizer]\nkind = \"sgd\"\neps = 1.0\n";
  const auto ran = run({"verify", folder.path() + "/run.toml"}, folder.path() + "/report.json");
  EXPECT_EQ(ran.exit_code, 2);
  const auto& problems = ran.report.at("problems").as_array();
  ASSERT_EQ(problems.size(), 3u) << ran.report.dump(1);
  for (const Json& problem : problems) {
    EXPECT_EQ(problem.at("kind").as_string(), "run-file");
    EXPECT_THAT(ran.out, ::testing::HasSubstr(problem.at("message").as_string()));
  }
  EXPECT_EQ(problems[0].at("op").as_string(), "train.steps");
  EXPECT_EQ(problems[0].at("line").as_integer(), 2);
  EXPECT_THAT(ran.err, ::testing::HasSubstr("has 3 problems"));
}

TEST(Commands, FiguresSayWhereTheyAreFromAndAPeakThatIsPassedIsWarnedOf) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const auto train = [&](const std::string& set, const std::string& name) {
    return run({"train", run_file, "--set", "train.steps=8", "--set", set, "--set",
                "output.run_dir=" + folder.path() + "/" + name},
               folder.path() + "/" + name + ".json");
  };
  const auto local = train("cluster.preset=localhost", "local");
  ASSERT_EQ(local.exit_code, 0) << local.err;
  EXPECT_EQ(local.report.at("peak_flops_source").as_string(), "measured on this machine");
  EXPECT_LE(local.report.at("model_flops_utilization").as_number(), 1);
  EXPECT_THAT(local.out, ::testing::Not(::testing::HasSubstr(" by preset")));

  const auto assumed = train("cluster.preset=perlmutter", "assumed");
  ASSERT_EQ(assumed.exit_code, 0) << assumed.err;
  EXPECT_EQ(assumed.report.at("predicted_from").as_string(), "preset perlmutter");
  EXPECT_THAT(assumed.out, ::testing::ContainsRegex("predicted .* per step by preset perlmutter"));
  EXPECT_THAT(assumed.out, ::testing::ContainsRegex("\\(predicted [^)]* by preset perlmutter\\)"));
  const auto page = run({"report", folder.path() + "/assumed"}, folder.path() + "/page.json");
  EXPECT_THAT(read_file(page.report.at("page").as_string()),
              ::testing::HasSubstr("Plan by preset perlmutter"));

  std::ofstream(folder.path() + "/slow.toml")
      << "version = 1\nlevels = [{ name = \"world\", size = 0, gb_per_second = 1.0, "
         "latency_microseconds = 1.0 }]\n[rates]\nfp32_flops_per_second = 1e6\n";
  const auto slow = train("cluster.file=" + folder.path() + "/slow.toml", "slow");
  ASSERT_EQ(slow.exit_code, 0) << slow.err;
  EXPECT_GT(slow.report.at("model_flops_utilization").as_number(), 1);
  EXPECT_THAT(slow.out, ::testing::ContainsRegex("warning +MFU is .* above 100 %.*slow.toml"));
}

}  // namespace
}  // namespace strait
