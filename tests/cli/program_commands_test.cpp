// What simulate, verify and plan tell of a run beside its figures, and what they refuse.
#include "strait/cli/program_commands.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "tests/data/temporary_folder.h"
#include "tests/paths.h"

namespace strait::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Answer {
  int code = -1;
  std::string out, err;
  Json report;
};

class ProgramCommands : public ::testing::Test {
 protected:
  Answer answer(std::vector<std::string> arguments) const {
    std::ostringstream out, err;
    arguments.insert(arguments.end(), {"--json", folder_.at("report.json")});
    Answer found;
    found.code = run_command(arguments, program_commands(), {out, err});
    found.out = out.str();
    found.err = err.str();
    found.report = Json::parse(read_file(folder_.at("report.json")), "report.json");
    return found;
  }
  /// A run on `ranks` ranks that needs no data.
  std::string run_file(const std::string& more = "") const {
    return folder_.write("run.toml",
                         "[data]\ntokenizer = \"byte\"\n[model]\npreset = \"nano-char\"\n" + more);
  }
  /// A cluster whose ranks hold 64 GB, unless `rates` says otherwise.
  std::string cluster_file(const std::string& rates) const {
    return folder_.write("c.toml",
                         "levels = [{ name = \"world\", size = 0, gb_per_second = 1e6, "
                         "latency_microseconds = 0 }]\n[rates]\n" +
                             rates);
  }

  testing::TemporaryFolder folder_;
};

TEST_F(ProgramCommands, SimulateAndVerifyTellARankThatNeedsMoreMemoryThanThereIs) {
  const std::string run = run_file(), small = cluster_file("memory_bytes = 1000000\n");
  const std::string on_small = "cluster.file=" + small;
  for (const char* command : {"simulate", "verify"}) {
    const Answer tight = answer({command, run, "--ranks", "2", "--set", on_small});
    EXPECT_EQ(tight.code, 0) << tight.err;
    EXPECT_THAT(tight.out, HasSubstr("warning     a rank needs "));
    EXPECT_THAT(tight.out, HasSubstr("plan.memory_share = 0.95 of the cluster's 1.00 MB"));
    EXPECT_EQ(tight.report.at("has_bytes").as_integer(), 950000);
    EXPECT_GT(tight.report.at("memory").as_array()[0].at("total").as_integer(), 950000);
    const Answer roomy = answer({command, run, "--ranks", "2"});
    EXPECT_THAT(roomy.out, Not(HasSubstr("warning")));
    EXPECT_GT(roomy.report.at("has_bytes").as_integer(),
              roomy.report.at("memory").as_array()[0].at("total").as_integer());
  }
}

TEST_F(ProgramCommands, SimulateAndPlanWarnOfMoreThanThePeak) {
  const std::string run = run_file();
  const auto with_blocks_at = [&](const char* command, const char* rate) {
    return answer({command, run, "--ranks", "2", "--cluster",
                   cluster_file(fmt::format("fp32_flops_per_second = 1e9\n"
                                            "fp32_model_flops_per_second = {}\n",
                                            rate))});
  };
  for (const char* command : {"simulate", "plan"}) {
    const Answer fast = with_blocks_at(command, "5e9");
    EXPECT_EQ(fast.code, 0) << fast.err;
    EXPECT_THAT(fast.out, HasSubstr("warning"));
    EXPECT_THAT(fast.out, HasSubstr("above 100 %")) << command;
    EXPECT_THAT(with_blocks_at(command, "9e8").out, Not(HasSubstr("above 100 %"))) << command;
  }
}

TEST_F(ProgramCommands, AReplicaWithNoneToAgreeWithIsToldOf) {
  for (const char* command : {"simulate", "verify"}) {
    const auto told = [&](const std::string& more) {
      return answer({command, run_file("[sync]\npolicy = \"diloco\"\n" + more), "--ranks", "2",
                     "--set", "train.steps=70"})
          .out;
    };
    EXPECT_THAT(told("replica = \"2\"\n"),
                HasSubstr("warning     all 2 data ranks are one replica"));
    EXPECT_THAT(told(""), Not(HasSubstr("warning")));
  }
}

TEST_F(ProgramCommands, CodecsOfWhatIsNotSentAreToldOf) {
  const std::string policy = "[sync]\npolicy = \"diloco\"\n";
  const std::string outer = policy + "outer = { codec = \"int8\" }\n";
  const std::string layers = "[placement]\npreset = \"ddp\"\n[compression]\ncodec = \"qsgd4\"\n";
  const std::string hops = "[placement.codecs]\ngradients = [\"int8\"]\n";
  const std::string no_sums = " has no effect: no gradients are summed over ranks";
  for (const char* command : {"simulate", "verify", "plan"}) {
    const auto told = [&](const std::string& more, const char* ranks) {
      return answer({command, run_file(more), "--ranks", ranks, "--set", "train.steps=60", "--set",
                     "plan.search=placement"})
          .out;
    };
    EXPECT_THAT(told(outer, "1"),
                HasSubstr("sync.outer.codec has no effect: one replica sends no differences"));
    EXPECT_THAT(told(layers, "1"), HasSubstr("warning     compression.codec" + no_sums));
    EXPECT_THAT(told(hops, "1"), HasSubstr("warning     placement.codecs.gradients" + no_sums));
    EXPECT_THAT(told(policy + hops, "2"), HasSubstr("placement.codecs.gradients" + no_sums));
    for (const std::string& more : {outer, layers, hops, policy})
      EXPECT_THAT(told(more, "2"), Not(HasSubstr("no effect"))) << more;
    EXPECT_THAT(told("[train]\nprecision = \"bf16\"\n", "1"), Not(HasSubstr("no effect")));
  }
}

TEST_F(ProgramCommands, WindowsThatLeaveNothingOutAreToldOf) {
  const auto told = [&](const std::string& preset, const std::vector<std::string>& sets) {
    const std::string text = "[data]\ntokenizer = \"byte\"\n[model]\npreset = \"" + preset +
                             "\"\nshape = { layers = 2, context = 64 }\n";
    std::vector<std::string> words = {"verify", folder_.write("run.toml", text), "--ranks", "1"};
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    const Answer found = answer(words);
    EXPECT_EQ(found.code, 0) << found.err;
    return found.out;
  };
  const std::string whole = "model.shape.window = 64 has no effect: the context has 64 tokens";
  EXPECT_THAT(told("mistral-7b", {"model.shape.window=64"}), HasSubstr("warning     " + whole));
  EXPECT_THAT(told("mistral-7b", {"model.shape.window=63"}), Not(HasSubstr("no effect")));
  EXPECT_THAT(told("mistral-7b", {"model.shape.window=4096"}), Not(HasSubstr("no effect")))
      << "as the preset has it";
  const std::string local =
      " has no effect: every block has a window, and turns by "
      "model.rope.local_theta = 10000.0";
  const std::string none = "model.shape.window_pattern=0", window = "model.shape.window=8";
  const std::string stretched =
      told("gemma-3-270m", {none, window, "model.rope.theta=500", "model.rope.factor=2"});
  EXPECT_THAT(stretched, HasSubstr("warning     model.rope.theta = 500.0" + local));
  EXPECT_THAT(stretched, HasSubstr("warning     model.rope.factor = 2.0" + local));
  EXPECT_THAT(told("gemma-3-270m", {none, window}), Not(HasSubstr("no effect")));
  EXPECT_THAT(
      told("gemma-3-270m", {"model.shape.window_pattern=2", window, "model.rope.theta=500"}),
      Not(HasSubstr("no effect")));
}

TEST_F(ProgramCommands, NoPolicyThatReachesTheTargetIsNamedInShort) {
  const Answer plan =
      answer({"plan", run_file("[train]\nsteps = 10\n"), "--ranks", "2", "--cluster",
              folder_.write("slow.toml",
                            "levels = [{ name = \"world\", size = 0, "
                            "gb_per_second = 1e-6, latency_microseconds = 1 }]\n"),
              "--set", "plan.utilization=0.99", "--set", "plan.search=sync"});
  EXPECT_EQ(plan.code, 3);
  EXPECT_THAT(plan.err, HasSubstr("the nearest, every-step, reaches"));
}

TEST_F(ProgramCommands, ClusterAndASetOfAnotherAreRefused) {
  const std::string run = run_file();
  for (const char* command : {"simulate", "plan"}) {
    const auto with = [&](const std::string& setting) {
      return answer({command, run, "--ranks", "2", "--cluster", "frontier", "--set", setting});
    };
    const Answer two = with("cluster.preset=alps");
    EXPECT_EQ(two.code, 2);
    EXPECT_THAT(two.err, HasSubstr("--cluster frontier"));
    EXPECT_EQ(two.report.at("error").at("key").as_string(), "cluster.preset");
    EXPECT_EQ(two.report.at("error").at("file").as_string(), "--set");
    EXPECT_EQ(with("cluster.file=none.toml").code, 2);
    EXPECT_EQ(with("cluster.levels=[{name=\"site\", gb_per_second=1.0}]").code, 2);
    EXPECT_EQ(with("cluster={preset=\"alps\"}").code, 2);
    // What takes effect, and what is at its default.
    for (const char* accepted :
         {"cluster.preset=frontier", "cluster.preset=localhost", "cluster.levels=[]"})
      EXPECT_EQ(with(accepted).code, 0) << command << ' ' << accepted;
  }
  const std::string own = run_file("[cluster]\npreset = \"alps\"\n");
  const Answer replaced = answer({"simulate", own, "--cluster", "frontier"});
  EXPECT_EQ(replaced.report.at("predicted_from").as_string(), "preset frontier");
}

TEST_F(ProgramCommands, TwoClustersBySetAreRefused) {
  const Answer two = answer(
      {"simulate", run_file(), "--set", "cluster.file=none.toml", "--set", "cluster.preset=alps"});
  EXPECT_EQ(two.code, 2);
  EXPECT_EQ(two.report.at("error").at("key").as_string(), "cluster.file");
  EXPECT_THAT(two.err, HasSubstr("cluster.preset"));
}

TEST_F(ProgramCommands, RefusalsOfTheCompositionNameTheLine) {
  const std::string odd =
      folder_.write("odd.toml",
                    "[data]\ntokenizer = \"ids:50257\"\n[model]\npreset = \"gpt2-124m\"\n[mesh]\n"
                    "axes = { x = 2 }\n");
  for (const char* command : {"simulate", "verify", "plan"}) {
    const Answer refused = answer({command, odd, "--ranks", "2"});
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("odd.toml:6, mesh.axes.x"));
    EXPECT_EQ(refused.report.at("error").at("line").as_integer(), 6);
    const Answer set = answer({command, run_file(), "--ranks", "2", "--set", "mesh.axes.x=2",
                               "--set", "data.tokenizer=ids:50257"});
    EXPECT_EQ(set.code, 2);
    EXPECT_EQ(set.report.at("error").at("file").as_string(), "--set") << set.err;
  }
}

TEST_F(ProgramCommands, ReportsNameMeshPlacementAndPrecision) {
  for (const char* command : {"simulate", "verify"}) {
    const Answer told = answer({command, run_file("[mesh]\naxes = { x = 2 }\n"), "--ranks", "4"});
    ASSERT_EQ(told.code, 0) << told.err;
    for (const char* axis : {"x", "y", "z", "sequence", "data", "stage"})
      EXPECT_NE(told.report.at("mesh").find(axis), nullptr) << axis;
    EXPECT_EQ(told.report.at("mesh").at("x").as_integer(), 2);
    EXPECT_EQ(told.report.at("mesh").at("data").as_integer(), 2);
    EXPECT_EQ(told.report.at("ranks").as_integer(), 4);
    EXPECT_EQ(told.report.at("placement").as_string(), "zero3");
    EXPECT_EQ(told.report.at("precision").as_string(), "fp32");
  }
}

TEST_F(ProgramCommands, TargetsAreCheckedBeforeTheSimulation) {
  const std::string run = run_file();
  const std::string trace = folder_.at("t.json");
  struct Case {
    std::vector<std::string> flags;
    int code;
  };
  const Case cases[] = {{{"--plot", folder_.at("q.pdf")}, 2},
                        {{"--plot", folder_.at("none/q.png")}, 6},
                        {{"--trace", folder_.at("none/q.json")}, 6}};
  for (const Case& one : cases) {
    std::vector<std::string> arguments = {"simulate", run};
    arguments.insert(arguments.end(), one.flags.begin(), one.flags.end());
    const Answer refused = answer(arguments);
    EXPECT_EQ(refused.code, one.code) << one.flags[1];
    EXPECT_EQ(refused.out, "") << one.flags[1];
  }
  for (const char* command : {"simulate", "verify", "plan"}) {
    std::ostringstream out, err;
    EXPECT_EQ(run_command({command, run, "--ranks", "1", "--json", folder_.at("none/r.json")},
                          program_commands(), {out, err}),
              6);
    EXPECT_EQ(out.str(), "") << command;
  }
}

TEST_F(ProgramCommands, NothingFitsNamesWhatWould) {
  const auto plan = [&](const std::string& bytes, const std::string& search) {
    return answer({"plan", run_file(), "--ranks", "2", "--cluster",
                   cluster_file("memory_bytes = " + bytes + "\n"), "--set",
                   "plan.search=" + search});
  };
  const std::string all = "mesh,placement,pipeline,sequence,micro_batch_size,recompute";
  const Answer narrow = plan("5200000", "placement");
  EXPECT_EQ(narrow.code, 3);
  EXPECT_THAT(narrow.err, HasSubstr("plan.search leaves out mesh, pipeline, sequence"));
  const Answer more = plan("5200000", all);
  EXPECT_EQ(more.code, 3);
  EXPECT_THAT(more.err, HasSubstr("16 ranks with placement.preset = \"zero3\""));
  EXPECT_THAT(more.err, HasSubstr("would need 4.90 MB each"));
  const Answer none = plan("500000", all);
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err, HasSubstr("nor do up to 32 ranks"));
}

TEST_F(ProgramCommands, PlanTellsWhichWrittenKeysItVaried) {
  const std::string run = run_file("[placement]\npreset = \"ddp\"\n");
  const auto plan = [&](const char* bytes, const char* search, const char* more) {
    return answer({"plan", run, "--ranks", "4", "--cluster",
                   cluster_file(std::string("memory_bytes = ") + bytes + "\n"), "--set", search,
                   "--set", more});
  };
  const Answer varied = plan("15000000", "plan.search=placement", "train.micro_batch_size=3");
  EXPECT_EQ(varied.code, 0) << varied.err;
  EXPECT_THAT(varied.out, HasSubstr("note: the first has other values than the run file of what "
                                    "plan.search varies: placement.preset\n"));
  const Answer kept = plan("20000000", "plan.search=micro_batch_size", "seed=1");
  EXPECT_EQ(kept.code, 0) << kept.err;
  EXPECT_THAT(kept.out, Not(HasSubstr("other values than the run file")));
}

TEST_F(ProgramCommands, AWrittenVocabularyIsAssumedWhereThereAreNoData) {
  const std::string example = test::in_source("examples/six_axes.toml");
  for (const char* command : {"simulate", "verify", "plan"}) {
    const Answer told =
        answer({command, example, "--ranks", "8", "--set", "plan.search=placement"});
    EXPECT_EQ(told.code, 0) << command << ": " << told.err;
    EXPECT_THAT(told.out, HasSubstr("so a vocabulary of 128 is assumed"));
  }
}

}  // namespace
}  // namespace strait::cli
