// Wrong input: the exit code of INTERFACE, a message that names what is wrong, and nothing lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <limits>

#include "strait/checkpoint/files/hash.h"
#include "strait/checkpoint/manifest.h"
#include "tests/app/program.h"
#include "tests/data/token_files.h"
#include "tests/paths.h"

namespace strait {
namespace {

using test::Child;
using test::Ran;
using test::run;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class BadInput : public ::testing::Test {
 protected:
  Ran train(std::vector<std::string> sets, int64_t ranks = 1) {
    std::vector<std::string> arguments = {"train",   run_file_,
                                          "--ranks", std::to_string(ranks),
                                          "--set",   "output.run_dir=" + run_dir()};
    for (const std::string& set : sets) {
      arguments.push_back("--set");
      arguments.push_back(set);
    }
    return run(arguments, folder_.path() + "/report.json");
  }
  std::string run_dir() const { return folder_.path() + "/run"; }
  std::string file(const std::string& name, const std::string& contents) const {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << contents;
    return path;
  }
  /// Exit code 2, the texts in the message, an error object in the report and no run folder left
  /// behind.
  void expect_refused(const Ran& ran, const std::vector<std::string>& texts) {
    EXPECT_EQ(ran.exit_code, 2) << ran.err;
    for (const std::string& text : texts) EXPECT_THAT(ran.err, HasSubstr(text));
    ASSERT_FALSE(ran.report.is_null());
    EXPECT_FALSE(ran.report.at("ok").as_bool());
    EXPECT_EQ(ran.report.at("exit_code").as_integer(), 2);
    EXPECT_FALSE(ran.report.at("error").at("message").as_string().empty());
    EXPECT_FALSE(std::filesystem::exists(run_dir())) << "a refused run left its folder behind";
  }

  TemporaryFolder folder_;
  std::string run_file_ = test::small_run_file(folder_.path());
};

TEST_F(BadInput, MalformedTomlNamesFileAndLine) {
  run_file_ = file("bad.toml", "name = \"x\"\n[train]\nsteps = = 3\n");
  expect_refused(train({}), {"bad.toml", "3"});
}

TEST_F(BadInput, AnUnknownKeyNamesTheNearest) {
  expect_refused(train({"train.stepz=3"}), {"train.stepz", "train.steps"});
}

TEST_F(BadInput, ImpossibleCombinationsNameTheNearestChoice) {
  expect_refused(train({"train.global_batch_size=7"}, 2), {"global_batch_size"});
  expect_refused(train({"placement.preset=zero4"}), {"placement.preset", "zero"});
  expect_refused(train({"placement.spans.weights=3"}, 4), {"placement.spans.weights"});
  expect_refused(train({"model.shape.heads=3"}), {"heads"});
  expect_refused(train({"train.precision=fp16"}), {"train.precision", "bf16"});
  expect_refused(train({"model.preset=gpt2-125m"}), {"gpt2-124m"});
  expect_refused(train({"sync.policy=co2", "sync.rounds.delay_steps=1"}),
                 {"sync.rounds.delay_steps", "is 30"});
  expect_refused(train({"train.recompute=every:0"}), {"train.recompute"});
}

TEST_F(BadInput, TextThatIsMissingEmptyOrNotUtf8) {
  expect_refused(train({"data.path=" + folder_.path() + "/none.txt"}), {"none.txt"});
  expect_refused(train({"data.path=" + file("empty.txt", "")}), {"empty.txt"});
  expect_refused(train({"data.path=" + file("latin.txt", "caf\xe9 au lait")}),
                 {"latin.txt", "3", "windows-1252"});
  expect_refused(train({"data.path=" + file("short.txt", "ab")}), {"short.txt"});
}

TEST_F(BadInput, TokensOfAnotherVocabularyAndDamagedShards) {
  const std::string shard = file("x.bin", testing::llmc_shard(std::vector<int64_t>(500, 300)));
  expect_refused(train({"data.path=" + shard}), {"x.bin", "tokenizer.json", "ids:50257"});
  expect_refused(train({"data.path=" + shard, "data.tokenizer=byte"}),
                 {"x.bin", "token 300", "offset 1024"});
  expect_refused(
      train({"data.path=" + file("cut.bin", testing::llmc_shard({1, 2, 3}).substr(0, 1029)),
             "data.tokenizer=ids:9"}),
      {"cut.bin", "truncated"});
  const std::string index = testing::megatron_index(8, 2, {3}, {0, 1});
  file("p.bin", "abcdef");
  expect_refused(train({"data.path=" + file("p.idx", index.substr(0, 50)), "data.tokenizer=ids:9"}),
                 {"p.idx", "truncated"});
  expect_refused(train({"data.path=" + file("l.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n")}),
                 {"l.jsonl", "line 2", "data.text_field = \"txt\""});
}

TEST_F(BadInput, AFolderThatHoldsARunIsNotOverwritten) {
  ASSERT_EQ(train({"train.steps=2"}).exit_code, 0);
  const std::string before = read_file(run_dir() + "/metrics.jsonl");
  const Ran again = train({"train.steps=2"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, AllOf(HasSubstr("already holds a run"), HasSubstr("checkpoint.resume")));
  EXPECT_EQ(read_file(run_dir() + "/metrics.jsonl"), before);
}

TEST_F(BadInput, DamagedCheckpointsAreFoundAndNamed) {
  ASSERT_EQ(train({"train.steps=2"}, 2).exit_code, 0);
  const std::string checkpoint = run_dir() + "/checkpoints/step-00000002";
  const std::string shard = checkpoint + "/rank-00001.safetensors";
  const std::string whole = read_file(shard);
  const auto resume = [&] {
    return train({"train.steps=4", "checkpoint.resume=" + checkpoint}, 2);
  };
  std::string flipped = whole;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
  for (const std::string& damaged : {flipped, whole.substr(0, whole.size() / 2), std::string()}) {
    std::ofstream(shard, std::ios::binary | std::ios::trunc) << damaged;
    const Ran ran = resume();
    EXPECT_EQ(ran.exit_code, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("rank-00001.safetensors"));
  }
  std::filesystem::remove(shard);
  EXPECT_THAT(resume().err, HasSubstr("rank-00001.safetensors"));
  std::ofstream(shard, std::ios::binary | std::ios::trunc) << whole;
  EXPECT_EQ(resume().exit_code, 0);
}

TEST_F(BadInput, ACheckpointOfAnotherModelIsRefused) {
  ASSERT_EQ(train({"train.steps=2"}).exit_code, 0);
  const Ran ran = train({"train.steps=4", "checkpoint.resume=auto", "model.shape.layers=3"});
  EXPECT_EQ(ran.exit_code, 2) << ran.err;
  EXPECT_THAT(ran.err, AllOf(HasSubstr("was saved with 2"), HasSubstr("nearest valid value is 2")));
  EXPECT_EQ(ran.report.at("error").at("key").as_string(), "model.shape.layers");
}

TEST_F(BadInput, DataThatAreWrongNameTheDataAndTheLineOfTheRunFile) {
  const std::string text = folder_.path() + "/text.txt", none = folder_.path() + "/none.txt",
                    latin = file("latin.txt", "caf\xe9 au lait"), tiny = file("tiny.txt", "ab"),
                    json = file("wrong.json", "{}");
  const auto written = [&](const std::string& path, const std::string& more = "seed = 1\n") {
    run_file_ = file("data.toml", "[data]\npath = \"" + path + "\"\n" + more);
    return run({"train", run_file_, "--set", "output.run_dir=" + run_dir(), "--set",
                "model.preset=nano-char"},
               folder_.path() + "/report.json");
  };
  const std::string tokenizer = "tokenizer = \"" + json + "\"\n";
  const std::tuple<Ran, std::string, std::string, int64_t> cases[] = {
      {written(none, ""), none, "data.path", 2},
      {written(latin, ""), latin, "data.encoding", 2},
      {written(latin, "encoding = \"utf-8\"\n"), latin, "data.encoding", 3},
      {written(tiny, ""), tiny, "data.path", 2},
      {written(text, tokenizer), json, "data.tokenizer", 3}};
  for (const auto& [ran, data, key, line] : cases) {
    expect_refused(ran, {data, "data.toml:" + std::to_string(line), key});
    const Json& error = ran.report.at("error");
    EXPECT_EQ(error.at("file").as_string(), run_file_) << ran.err;
    EXPECT_EQ(error.at("line").as_integer(), line) << ran.err;
    EXPECT_EQ(error.at("key").as_string(), key) << ran.err;
  }
}

TEST_F(BadInput, ANonFiniteLossStopsWithFiveOrIsSkipped) {
  // fp32 overflows in the second step; the first update already wrote weights near 1e30.
  const Ran stopped =
      train({"optimizer.learning_rate=1e30", "optimizer.warmup_steps=0", "train.steps=6"}, 2);
  EXPECT_EQ(stopped.exit_code, 5) << stopped.err;
  EXPECT_THAT(stopped.err, AllOf(HasSubstr("step"), HasSubstr("learning_rate")));
  EXPECT_EQ(stopped.report.at("error").at("kind").as_string(), "non-finite");
  std::filesystem::remove_all(run_dir());
  const Ran skipped = train({"optimizer.learning_rate=1e30", "optimizer.warmup_steps=0",
                             "train.steps=6", "train.non_finite=skip"},
                            2);
  EXPECT_EQ(skipped.exit_code, 0) << skipped.err;
  EXPECT_EQ(skipped.report.at("steps").as_integer(), 6);
  EXPECT_EQ(skipped.report.at("steps_skipped").as_integer(), 5);
  EXPECT_THAT(skipped.out, HasSubstr("left out    5 of 6 steps: loss or gradient not finite"));
  EXPECT_THAT(read_file(run_dir() + "/metrics.jsonl"), HasSubstr("\"skipped\": true"));
  EXPECT_THAT(run({"report", run_dir()}).out, HasSubstr("5 left out"));
}

TEST_F(BadInput, WhatIsSaidOfANonFiniteLossIsTrueOfTheRun) {
  const auto stopped = [&](std::vector<std::string> sets) {
    std::filesystem::remove_all(run_dir());
    sets.insert(sets.end(), {"optimizer.learning_rate=1e30", "optimizer.warmup_steps=0",
                             "train.clip_norm=0", "train.steps=6"});
    const Ran ran = train(sets, 2);
    EXPECT_EQ(ran.exit_code, 5) << ran.err;
    EXPECT_THAT(ran.err, AllOf(HasSubstr("gradient norm nan;"), Not(HasSubstr("-nan"))));
    return ran.err;
  };
  const auto kSkip = HasSubstr("train.non_finite"), kUnchanged = HasSubstr("were not changed");
  EXPECT_THAT(stopped({}), AllOf(kSkip, kUnchanged));
  EXPECT_THAT(stopped({"sync.policy=diloco", "sync.rounds.period_steps=3"}),
              AllOf(Not(kSkip), kUnchanged));
  EXPECT_THAT(stopped({"optimizer.in_backward=true"}),
              AllOf(Not(kSkip), Not(kUnchanged), HasSubstr("go on from the last checkpoint")));
}

TEST_F(BadInput, AModelIsNoDataAndAVocabularyOfOneTeachesNothing) {
  ASSERT_EQ(train({"train.steps=1"}).exit_code, 0);
  const Ran converted = run({"convert", run_dir(), folder_.path() + "/x", "--to", "llm.c"});
  EXPECT_EQ(converted.exit_code, 2);
  EXPECT_THAT(converted.err, AllOf(HasSubstr("holds a model"), HasSubstr("--to safetensors")));
  const Ran benched =
      run({"bench", "step", "--model", "nano-char", "--vocabulary", "1", "--context", "4"});
  EXPECT_EQ(benched.exit_code, 2);
  EXPECT_THAT(benched.err, HasSubstr("the nearest valid value is 2"));
  const Ran images = run({"bench", "step", "--model", "unet-nano", "--threads", "1"});
  EXPECT_EQ(images.exit_code, 2);
  EXPECT_THAT(images.err, AllOf(HasSubstr("--model unet-nano"), HasSubstr("gpt2-124m")));
}

TEST_F(BadInput, APromptThatTheTokenizerCannotSay) {
  ASSERT_EQ(train({"train.steps=2"}).exit_code, 0);
  const Ran ran = run({"sample", run_dir(), "--prompt", "\xe2\x82\xac"});
  EXPECT_EQ(ran.exit_code, 2) << ran.err;
  EXPECT_THAT(ran.err, AllOf(HasSubstr("--prompt"), HasSubstr(run_dir() + "/checkpoints/step")));
  EXPECT_EQ(run({"sample", folder_.path(), "--prompt", "s"}).exit_code, 2);
}

TEST_F(BadInput, SamplingThatCannotTakeEffectIsRefused) {
  ASSERT_EQ(train({"train.steps=1"}).exit_code, 0);
  const auto sample = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"sample", run_dir(), "--prompt", "s", "--tokens", "2"});
    return run(flags, folder_.path() + "/sample.json");
  };
  const std::pair<const char*, const char*> useless[] = {
      {"--top-k", "5"}, {"--top-p", "0.5"}, {"--seed", "4"}};
  for (const auto& [flag, value] : useless) {
    const Ran ran = sample({"--temperature", "0", flag, value});
    EXPECT_EQ(ran.exit_code, 2);
    EXPECT_THAT(ran.err, AllOf(HasSubstr(std::string(flag) + " " + value),
                               HasSubstr("nearest valid choice")));
    EXPECT_EQ(ran.report.at("error").at("key").as_string(), flag);
    EXPECT_EQ(sample({flag, value}).exit_code, 0);
  }
  EXPECT_EQ(sample({"--temperature", "0", "--top-k", "0", "--top-p", "1"}).exit_code, 0);
  const auto vocabulary = static_cast<int64_t>(
      load_tokenizer(run_dir() + "/checkpoints/step-00000001/tokenizer.json")->vocabulary_size());
  EXPECT_EQ(sample({"--top-k", std::to_string(vocabulary)}).exit_code, 0);
  const Ran ran = sample({"--top-k", std::to_string(vocabulary + 1)});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, HasSubstr("the nearest valid value is " + std::to_string(vocabulary)));
}

TEST_F(BadInput, AFullDiskEndsWithSixAndKeepsTheOldCheckpoint) {
  ASSERT_EQ(train({"train.steps=2", "checkpoint.asynchronous=false"}).exit_code, 0);
  const std::string old_manifest =
      read_file(run_dir() + "/checkpoints/step-00000002/manifest.json");
  // A limit on file sizes stands for the full disk: the shard of this model is larger than 16
  // blocks of 512.
  const std::string log = folder_.path() + "/log";
  const std::string command = "ulimit -f 16; exec " + test::in_build("strait train ") + run_file_ +
                              " --set output.run_dir=" + run_dir() +
                              " --set checkpoint.resume=auto --set train.steps=4 >" + log + " 2>&1";
  const int status = std::system(("bash -c '" + command + "'").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 6) << read_file(log);
  EXPECT_EQ(read_file(run_dir() + "/checkpoints/step-00000002/manifest.json"), old_manifest);
  const Ran resumed = train({"train.steps=4", "checkpoint.resume=auto"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.report.at("resumed_from_step").as_integer(), 2);
}

TEST_F(BadInput, NothingFitsEndsWithThree) {
  const Ran ran = run({"plan", run_file_, "--ranks", "2", "--set", "plan.memory_share=1e-9"},
                      folder_.path() + "/p.json");
  EXPECT_EQ(ran.exit_code, 3) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("per rank"));
  EXPECT_GT(ran.report.at("rejected").size(), 0u);
}

TEST_F(BadInput, AUtilizationThatNoPolicyReachesEndsWithThree) {
  const Ran ran = run({"plan", run_file_, "--ranks", "2", "--set", "plan.utilization=0.9999999",
                       "--set", "cluster.levels=[{name=\"site\",size=0,gb_per_second=1e-9}]"},
                      folder_.path() + "/p.json");
  EXPECT_EQ(ran.exit_code, 3) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("the nearest valid value of plan.utilization is 0."));
  EXPECT_GT(ran.report.at("candidates").size(), 0u);
}

TEST_F(BadInput, AMissingPathNamesTheLineThatWritesIt) {
  run_file_ = file("missing.toml", "name = \"x\"\n[data]\npath = \"texxt.txt\"\n");
  for (const char* command : {"train", "verify", "simulate", "plan"}) {
    const Ran ran = run({command, run_file_, "--ranks", "1"}, folder_.path() + "/report.json");
    EXPECT_EQ(ran.exit_code, 2) << command;
    EXPECT_THAT(ran.err, AllOf(HasSubstr("texxt.txt does not exist"), HasSubstr("missing.toml:3")));
    EXPECT_EQ(ran.report.at("error").at("line").as_integer(), 3) << command;
  }
}

TEST_F(BadInput, FilesThatNeverEndOrBeginAreRefusedByKind) {
  const std::string fifo = folder_.path() + "/fifo", loop = folder_.path() + "/loop";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::filesystem::create_symlink(loop, loop);
  expect_refused(train({"data.path=" + fifo}), {"data.path", "is a FIFO"});
  expect_refused(train({"data.path=/dev/zero"}), {"data.path", "/dev/zero is a device"});
  expect_refused(train({"data.path=" + loop}), {"data.path", "loop"});
  expect_refused(train({"data.tokenizer=" + fifo}), {"is a FIFO"});
  expect_refused(train({"cluster.file=" + fifo}), {"cluster.file", "is a FIFO"});
  run_file_ = fifo;
  expect_refused(train({}), {"is a FIFO"});
  run_file_ = "/dev/zero";
  expect_refused(train({}), {"is a device"});
}

TEST_F(BadInput, AModelBeyondMemoryIsRefusedBeforeAnyIsTaken) {
  const Ran ran =
      train({"model.preset=gpt3-175b", "model.shape.layers=96", "model.shape.width=12288",
             "model.shape.heads=96", "model.shape.kv_heads=96", "model.shape.ffn_width=49152"});
  EXPECT_EQ(ran.exit_code, 3) << ran.err;
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("need"), HasSubstr("GB are there"), HasSubstr("strait plan")));
  EXPECT_FALSE(std::filesystem::exists(run_dir()));
}

TEST_F(BadInput, DurationsThatOverflowAreRefused) {
  for (const char* value : {"1e300", "1e10", "0", "-1", "inf", "nan"})
    expect_refused(train({std::string("runtime.deadline_seconds=") + value}),
                   {"runtime.deadline_seconds"});
}

/// Makes the first weight of the embedding no number, with hashes that say so.
void spoil_weights(const std::string& checkpoint) {
  const std::string shard = checkpoint + "/rank-00000.safetensors";
  std::string bytes = read_file(shard);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const size_t weights = bytes.find("\"embedding/master/");
  const size_t at = bytes.find('[', bytes.find("\"data_offsets\"", weights)) + 1;
  const float bad = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + 8 + header_bytes + std::stoull(bytes.substr(at)), &bad, sizeof(bad));
  write_file_atomically(shard, bytes);
  const std::string path = checkpoint + "/manifest.json";
  checkpoint::Manifest manifest = checkpoint::parse_manifest(read_file(path), path);
  for (checkpoint::FileRecord& file : manifest.files)
    if (file.name == "rank-00000.safetensors") file.hash = checkpoint::hash_hex(bytes);
  write_file_atomically(path, checkpoint::manifest_text(manifest));
}

TEST_F(BadInput, WeightsThatAreNotFiniteAreRefusedByWhateverReadsThem) {
  ASSERT_EQ(train({"train.steps=2"}).exit_code, 0);
  spoil_weights(run_dir() + "/checkpoints/step-00000002");
  EXPECT_EQ(run({"inspect", run_dir()}).exit_code, 0) << "what is stored is what the hashes say";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"sample", run_dir(), "--prompt", "r"},
        {"evaluate", run_dir()},
        {"convert", run_dir(), folder_.path() + "/model", "--to", "hf"},
        {"convert", run_dir(), folder_.path() + "/model.safetensors"}}) {
    const Ran ran = run(command);
    EXPECT_EQ(ran.exit_code, 2) << command[0] << ran.err;
    EXPECT_THAT(ran.err, AllOf(HasSubstr("embedding"), HasSubstr("not finite"))) << command[0];
  }
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/model"));
  const Ran trained = train({"train.steps=4", "checkpoint.resume=auto"});
  EXPECT_EQ(trained.exit_code, 5) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("step 3"));
}

TEST_F(BadInput, NamesWithSpacesAndControlCharacters) {
  const std::string spaced = folder_.path() + "/my text.txt", report = folder_.path() + "/out page";
  std::filesystem::copy_file(folder_.path() + "/text.txt", spaced);
  ASSERT_EQ(train({"data.path=" + spaced, "train.steps=2"}).exit_code, 0);
  EXPECT_EQ(train({"data.path=" + spaced, "train.steps=3", "checkpoint.resume=auto"}).exit_code, 0);
  EXPECT_EQ(run({"report", run_dir(), "-o", report}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(report + "/report.html"));
  const Ran ran = train({"data.path=a\x1b[2Jb\rc"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, HasSubstr("\\x1b[2Jb\\x0dc"));
  EXPECT_EQ(ran.err.find('\x1b'), std::string::npos);
}

TEST_F(BadInput, InspectOfADamagedCheckpointFails) {
  ASSERT_EQ(train({"train.steps=2"}).exit_code, 0);
  const std::string shard = run_dir() + "/checkpoints/step-00000002/rank-00000.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(shard, std::ios::binary | std::ios::trunc) << bytes;
  const Ran ran = run({"inspect", run_dir()}, folder_.path() + "/report.json");
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, HasSubstr("rank-00000.safetensors is damaged\n"));
  EXPECT_FALSE(ran.report.at("files").as_array()[0].at("ok").as_bool());
  const std::string folder = std::filesystem::path(shard).parent_path();
  std::filesystem::resize_file(shard, 100);
  EXPECT_THAT(run({"inspect", folder}).err, HasSubstr("rank-00000.safetensors is damaged: 100 of " +
                                                      std::to_string(bytes.size()) + " bytes"));
  std::filesystem::remove(shard);
  EXPECT_THAT(run({"inspect", folder}).err, HasSubstr("rank-00000.safetensors is missing"));
}

}  // namespace
}  // namespace strait
