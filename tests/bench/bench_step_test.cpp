// The step benchmark: its products, its peer's protocol, and PyTorch itself where it is installed.
#include "strait/bench/bench_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/measure/peer.h"
#include "tests/paths.h"

namespace strait::measure {
namespace {

using ::testing::HasSubstr;

ModelShape tiny_model() {
  ShapeOptions options;
  options.layers = 2;
  options.heads = options.kv_heads = 2;
  options.width = 16;
  options.ffn_width = 64;
  options.context = 32;
  return gpt2_shape(options, 101);
}

ModelShape tiny_llama() {
  ShapeOptions options;
  options.layers = options.heads = 2;
  options.kv_heads = 1;
  options.width = 16;
  options.ffn_width = 44;
  options.context = 32;
  options.bias = options.tied_head = false;
  return llama_shape(options, 101);
}

StepCase tiny_case() { return {"tiny", 3, 8, "fp32", 1, 101}; }

/// A peer script for /bin/sh, removed again.
class Script {
 public:
  explicit Script(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("strait-peer-" + std::to_string(getpid()) + ".sh")) {
    write_file_atomically(path_, text);
  }
  ~Script() { std::filesystem::remove(path_); }
  TorchPeerOptions options() const {
    return {.python = "/bin/sh", .script = path_, .deadline_seconds = 10};
  }

 private:
  std::string path_;
};

// Six operations per weight of a linear layer and per token: forward, input gradient, weight
// gradient.
TEST(StepGemms, HaveSixOperationsPerWeightAndToken) {
  const ModelShape model = tiny_model();
  double weights = 0;
  for (const UnitShape& unit : model.units) {
    for (const ParameterShape& parameter : unit.parameters) {
      const bool looked_up = parameter.name.find("position") != std::string::npos;
      if (parameter.dims.size() == 2 && !looked_up)
        weights += static_cast<double>(parameter.elements());
    }
  }
  double flops = 0;
  for (const GemmShape& shape : step_gemms(model, 3, 8))
    flops += shape.flops() * static_cast<double>(shape.count);
  EXPECT_EQ(flops, 6.0 * 24 * weights);
}

TEST(BenchStep, FillsARow) {
  const StepSubject subject{[] { return std::string(); }, [] { return 0.5; }};
  const BenchRow row = bench_step(tiny_case(), tiny_model(), subject, {}, {.runs = 5});
  EXPECT_EQ(row.bench_case.dump(),
            Json::parse(R"({"model":"tiny","micro_batch_size":3,"context":8,"vocabulary":101,)"
                        R"("precision":"fp32","threads":1})",
                        "wanted")
                .dump());
  ASSERT_TRUE(row.seconds && row.bound);
  EXPECT_EQ(row.work, 24);
  EXPECT_EQ(row.rate_unit, "tokens_per_second");
  EXPECT_EQ(row.bound->name, "own-gemms");
  EXPECT_GT(row.bound->seconds, 0.0);
}

TEST(TorchStepPeer, SpeaksTheProtocol) {
  const Script script("echo ready 9.8 123; while read word; do echo 0.25 7.5; done");
  const Contender peer = torch_step_peer(tiny_case(), tiny_model(), script.options());
  EXPECT_EQ(peer.missing, "");
  EXPECT_EQ(peer.version, "9.8");
  EXPECT_EQ(peer.run(), 0.25);
  EXPECT_EQ(peer.run(), 0.25);
}

TEST(TorchStepPeer, SaysWhyItIsMissing) {
  EXPECT_THAT(torch_step_peer(tiny_case(), tiny_model(), {.script = "/no/such/script.py"}).missing,
              HasSubstr("/no/such/script.py"));
  EXPECT_THAT(torch_step_peer(tiny_case(), tiny_model(), {}).missing, HasSubstr("installed"));
  EXPECT_THAT(torch_step_peer(tiny_case(), tiny_model(), {.python = "/no/python", .script = "x.py"})
                  .missing,
              HasSubstr("cannot be started"));
  const Script script("echo error ModuleNotFoundError no module torch");
  EXPECT_THAT(torch_step_peer(tiny_case(), tiny_model(), script.options()).missing,
              HasSubstr("ModuleNotFoundError"));
  ModelShape scaled = tiny_llama();
  scaled.options.rope.factor = 8;
  EXPECT_THAT(torch_step_peer(tiny_case(), scaled, script.options()).missing,
              HasSubstr("not scaled"));
  ModelShape other = tiny_model();
  other.family = "mamba";
  EXPECT_THAT(torch_step_peer(tiny_case(), other, script.options()).missing, HasSubstr("mamba"));
}

TEST(TorchStepPeer, NonsenseIsALostPeer) {
  const Script script("echo ready 9.8 123; while read word; do echo soon; done");
  const Contender peer = torch_step_peer(tiny_case(), tiny_model(), script.options());
  EXPECT_THROW(peer.run(), PeerLost);
}

/// Fresh weights of deviation 0.02 give almost equal probabilities; twenty steps on one batch lower
/// the loss.
void expect_trains(const std::string& script, const std::vector<std::string>& flags,
                   const ModelShape& model) {
  std::vector<std::string> words = {"/usr/bin/python3", test::in_source("bench/peers/") + script,
                                    "--layers",         "2",
                                    "--heads",          "2",
                                    "--width",          "16",
                                    "--vocabulary",     "101",
                                    "--positions",      "32",
                                    "--batch",          "3",
                                    "--context",        "8",
                                    "--threads",        "1"};
  words.insert(words.end(), flags.begin(), flags.end());
  PeerProcess peer(words);
  const std::string greeting = peer.read_line(120);
  if (greeting.rfind("error ModuleNotFoundError", 0) == 0)
    GTEST_SKIP() << "PyTorch is not installed: " << greeting;
  char version[64];
  long parameters = 0;
  ASSERT_EQ(std::sscanf(greeting.c_str(), "ready %63s %ld", version, &parameters), 2) << greeting;
  EXPECT_EQ(parameters, model.parameters());
  double seconds = 0, loss = 0, first = 0;
  for (int step = 0; step < 20; ++step) {
    peer.write_line("step");
    ASSERT_EQ(std::sscanf(peer.read_line(60).c_str(), "%lf %lf", &seconds, &loss), 2);
    EXPECT_GT(seconds, 0.0);
    if (step == 0) first = loss;
  }
  EXPECT_NEAR(first, std::log(101.0), 0.1);
  EXPECT_LT(loss, first - 0.05);
}

TEST(TorchStepPeer, PyTorchTrainsTheSameGpt) { expect_trains("gpt2_torch.py", {}, tiny_model()); }

TEST(TorchStepPeer, PyTorchTrainsTheSameLlama) {
  expect_trains("llama_torch.py", {"--kv-heads", "1", "--ffn-width", "44"}, tiny_llama());
}

}  // namespace
}  // namespace strait::measure
