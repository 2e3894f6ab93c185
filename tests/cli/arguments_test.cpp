// Every command and flag is read; wrong ones name the nearest.
#include "strait/cli/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"

namespace strait::cli {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

const Words kAll = {"train", "sample", "verify",  "simulate", "plan",
                    "probe", "bench",  "inspect", "report",   "convert"};

Command parse(const Words& words) { return parse_arguments(words, kAll); }

std::string error_of(const Words& words, const Words& available = kAll) {
  try {
    parse_arguments(words, available);
  } catch (const UserError& error) {
    EXPECT_TRUE(error.place().key) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(Arguments, Train) {
  const Command command =
      parse({"train", "--set", "train.steps=3", "run.toml", "--ranks", "2", "--set",
             "optimizer.betas=[0.8, 0.9]", "--set=data.path=a b", "--json", "-"});
  EXPECT_EQ(command.name, "train");
  EXPECT_EQ(command.path, "run.toml");
  EXPECT_EQ(command.ranks, 2);
  EXPECT_EQ(command.sets, (Words{"train.steps=3", "optimizer.betas=[0.8, 0.9]", "data.path=a b"}));
  EXPECT_EQ(command.json, "-");
  EXPECT_EQ(command.text, "");
  EXPECT_FALSE(parse({"train", "run.toml"}).ranks);
}

TEST(Arguments, Sample) {
  const Command command =
      parse({"sample", "run/step-3", "--prompt", "[Act I, 2]", "--tokens", "10", "--temperature",
             "0.5", "--top-k", "40", "--top-p", "0.9", "--seed", "7"});
  EXPECT_EQ(command.path, "run/step-3");
  EXPECT_EQ(command.sample.prompt, "[Act I, 2]");
  EXPECT_EQ(command.sample.tokens, 10);
  EXPECT_EQ(command.sample.temperature, 0.5);
  EXPECT_EQ(command.sample.top_k, 40);
  EXPECT_EQ(command.sample.top_p, 0.9);
  EXPECT_EQ(command.sample.seed, 7);
  EXPECT_EQ(parse({"sample", "x", "--prompt", ""}).sample.prompt, "");
  EXPECT_EQ(parse({"sample", "x", "--prompt", "--not a flag"}).sample.prompt, "--not a flag");
  EXPECT_EQ(parse({"sample", "x", "--prompt", "a\nb \"c\" 'd' é"}).sample.prompt,
            "a\nb \"c\" 'd' é");
}

TEST(Arguments, TheOtherCommands) {
  EXPECT_TRUE(parse({"verify", "run.toml", "--print"}).print);
  const Command simulate = parse({"simulate", "run.toml", "--ranks", "64", "--trace", "t.json",
                                  "--plot", "p.svg", "--cluster", "alps"});
  EXPECT_EQ(simulate.trace, "t.json");
  EXPECT_EQ(simulate.plot, "p.svg");
  EXPECT_EQ(simulate.cluster, "alps");
  const Command plan = parse({"plan", "run.toml", "--ranks", "8", "--cluster", "c.toml"});
  EXPECT_EQ(plan.ranks, 8);
  EXPECT_EQ(plan.cluster, "c.toml");
  EXPECT_EQ(parse({"plan", "run.toml", "--ranks", "8", "-o", "best.toml"}).output, "best.toml");
  const Command report = parse({"report", "runs/a", "runs/b", "-o", "both"});
  EXPECT_EQ(report.path, "runs/a");
  EXPECT_EQ(report.paths, Words({"runs/a", "runs/b"}));
  EXPECT_EQ(report.output, "both");
  EXPECT_EQ(parse({"probe", "-o", "c.toml"}).output, "c.toml");
  EXPECT_EQ(parse({"probe", "--output", "c.toml"}).output, "c.toml");
  EXPECT_EQ(parse({"probe", "run.toml", "-o", "c.toml", "--set", "a=1"}).path, "run.toml");
  EXPECT_EQ(parse({"inspect", "runs/a", "--json", "x.json"}).json, "x.json");
  EXPECT_EQ(parse({"report", "runs/a"}).path, "runs/a");
  const Command convert = parse({"convert", "runs/a", "b", "--to", "hf"});
  EXPECT_EQ(convert.path, "runs/a");
  EXPECT_EQ(convert.output, "b");
  EXPECT_EQ(convert.form, "hf");
  EXPECT_EQ(parse({"convert", "runs/a", "b"}).form, "");
  EXPECT_THAT(error_of({"convert", "runs/a"}), HasSubstr("TO"));
}

TEST(Arguments, BenchCases) {
  const Command step =
      parse({"bench", "step", "--model", "gpt2-124m", "--micro-batch-size", "4", "--context", "256",
             "--precision", "fp32", "--threads", "2", "--json", "-"});
  EXPECT_EQ(step.name, "bench");
  EXPECT_EQ(step.subject, "step");
  EXPECT_EQ(step.case_keys.size(), 5u);
  EXPECT_EQ(case_number(step, "micro_batch_size", 1), 4);
  EXPECT_EQ(case_text(step, "model", "x"), "gpt2-124m");
  EXPECT_EQ(case_text(step, "dtype", "x"), "x");
  EXPECT_EQ(case_number(step, "ranks", 3), 3);
  EXPECT_EQ(step.json, "-");
  for (const std::string subject : {"gemm", "step", "codec", "collective", "checkpoint"})
    for (const std::string& key : case_key_names(subject)) {  // each case key is a flag
      std::string flag = "--" + key;
      std::replace(flag.begin(), flag.end(), '_', '-');
      std::string good = "2";
      if (key == "dtype" || key == "precision") good = "fp64";
      if (key == "operation") good = "all-reduce";
      if (key == "backend") good = "threads";
      if (key == "codec") good = "none";
      if (key == "direction") good = "encode";
      if (key == "products") good = "widened";
      if (key == "breakdown") good = "on";
      EXPECT_EQ(parse({"bench", subject, flag, good}).case_keys.at(key), good);
    }
  EXPECT_EQ(case_key_names("gemm"), (Words{"m", "n", "k", "dtype", "threads", "products"}));
  EXPECT_EQ(case_key_names("step"),
            (Words{"model", "micro_batch_size", "context", "vocabulary", "precision", "threads",
                   "products", "breakdown", "peer_python"}));
  EXPECT_EQ(case_key_names("collective"),
            (Words{"operation", "backend", "ranks", "bytes", "dtype", "codec"}));
  EXPECT_TRUE(case_key_names("other").empty());
}

TEST(Arguments, HelpHasAnExampleForEveryCommand) {
  EXPECT_THAT(parse({"--help"}).text, HasSubstr("Example:"));
  for (const std::string& name : kAll) {
    EXPECT_THAT(parse({"--help"}).text, HasSubstr(name));
    const std::string help = parse({name, "--help"}).text;
    EXPECT_THAT(help, HasSubstr("Example:\n  strait " + name));
    EXPECT_THAT(help, HasSubstr("--json"));
  }
  for (const std::string subject : {"gemm", "step", "codec", "collective"})
    EXPECT_THAT(parse({"bench", subject, "--help"}).text,
                HasSubstr("Example:\n  strait bench " + subject));
  EXPECT_THAT(parse({"--version"}).text, HasSubstr("strait "));
}

TEST(Arguments, WrongOnesNameTheNearest) {
  EXPECT_THAT(error_of({}), HasSubstr("no command; the commands are train, sample"));
  EXPECT_THAT(error_of({"trian", "run.toml"}),
              HasSubstr("no command \"trian\"; the nearest is \"train\""));
  EXPECT_THAT(error_of({"--verison"}),
              HasSubstr("strait has no flag --verison; the nearest is --version"));
  EXPECT_THAT(error_of({"train", "run.toml", "--rank", "2"}),
              HasSubstr("strait train has no flag --rank; the nearest is --ranks"));
  EXPECT_THAT(error_of({"train", "--rank", "2"}), HasSubstr("nearest is --ranks"));
  EXPECT_THAT(error_of({"train", "run.toml", "--stes=3"}),
              HasSubstr("no flag --stes; the nearest is --set"));
  EXPECT_THAT(error_of({"train", "run.toml", "other.toml"}),
              HasSubstr("no further argument \"other.toml\""));
  EXPECT_THAT(error_of({"train"}), HasSubstr("RUN.toml is required"));
  EXPECT_THAT(error_of({"train", "run.toml", "--ranks", "two"}),
              HasSubstr("--ranks = two is no number that --ranks takes; an example: --ranks 2"));
  EXPECT_THAT(error_of({"train", "run.toml", "--ranks", "0"}),
              HasSubstr("nearest valid value is 1"));
  EXPECT_THAT(error_of({"train", "run.toml", "--ranks", "99999999999999999999"}),
              HasSubstr("nearest valid value is 1000000000"));
  EXPECT_THAT(error_of({"train", "run.toml", "--ranks"}), HasSubstr("--ranks"));
  EXPECT_THAT(error_of({"plan", "run.toml"}), HasSubstr("--ranks is required"));
  EXPECT_THAT(error_of({"probe"}), HasSubstr("--output is required"));
  EXPECT_THAT(error_of({"sample", "x", "--top-p", "1.5"}), HasSubstr("nearest valid value is 1"));
  EXPECT_THAT(error_of({"sample", "x", "--top-p", "0"}), HasSubstr("(0, 1]"));
  EXPECT_THAT(error_of({"sample", "x", "--temperature", "-1"}),
              HasSubstr("nearest valid value is 0"));
  EXPECT_THAT(error_of({"sample", "x", "--temperature", "nan"}), HasSubstr("--temperature"));
  EXPECT_THAT(error_of({"sample", "x", "--tokens", "0"}), HasSubstr("nearest valid value is 1"));
  EXPECT_THAT(error_of({"bench"}), HasSubstr("gemm, step, codec, collective or checkpoint"));
  EXPECT_THAT(error_of({"bench", "gem"}), HasSubstr("nearest is \"gemm\""));
  EXPECT_THAT(error_of({"bench", "gemm", "--mm", "3"}),
              HasSubstr("no flag --mm; the nearest is --m"));
  EXPECT_THAT(error_of({"bench", "gemm", "--m", "0"}), HasSubstr("nearest valid value is 1"));
  EXPECT_THAT(error_of({"bench", "gemm", "--m", "x"}), HasSubstr("whole number"));
  EXPECT_THAT(error_of({"bench", "gemm", "--m", "999999999999999999999"}),
              HasSubstr("is too large; the nearest valid value is 9223372036854775807"));
  EXPECT_THAT(error_of({"bench", "gemm", "--dtype", "fp31"}), HasSubstr("nearest is fp32"));
  EXPECT_THAT(error_of({"bench", "step", "--products", "tile"}), HasSubstr("nearest is tiles"));
  EXPECT_THAT(error_of({"bench", "collective", "--backend", "nccl"}), HasSubstr("(threads, mpi)"));
  EXPECT_THAT(error_of({"bench", "collective", "--operation", "barrier"}), HasSubstr("nearest"));
}

TEST(Arguments, ACommandThatThisProgramLacksDoesNotExist) {
  const Words few = {"plan", "verify"};
  EXPECT_THAT(error_of({"train", "run.toml"}, few), HasSubstr("there is no command \"train\""));
  EXPECT_THAT(parse_arguments({"--help"}, few).text, testing::Not(HasSubstr("inspect")));
  EXPECT_EQ(parse_arguments({"verify", "run.toml"}, few).name, "verify");
}

TEST(Arguments, AnEmptyValueIsNoValueLeftOut) {
  const std::pair<Words, const char*> cases[] = {
      {{"plan", "run.toml", "--ranks", ""}, "--ranks"},
      {{"plan", "run.toml", "--ranks", "4", "--cluster", ""}, "--cluster"},
      {{"train", ""}, "RUN.toml"},
      {{"train", "run.toml", "--json", ""}, "--json"},
      {{"train", "run.toml", "--set", ""}, "--set"},
      {{"bench", "gemm", "--m", ""}, "--m"}};
  for (const auto& [words, name] : cases)
    EXPECT_THAT(error_of(words), HasSubstr(std::string(name) + " was given an empty value"));
  EXPECT_EQ(parse({"sample", "run", "--prompt", ""}).sample.prompt, "");
}

}  // namespace
}  // namespace strait::cli
