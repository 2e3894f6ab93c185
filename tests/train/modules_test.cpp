// A chain of TorchScript modules trains what LibTorch's own autograd and AdamW train, whatever the
// placement, ranks, micro-batches and codec.
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "tests/model/module_folder.h"
#include "tests/train/torch_peer.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::Tensors;
using test::Trained;
using Sets = std::vector<std::string>;

class ModuleRuns : public test::MeshRuns {
 protected:
  explicit ModuleRuns(const std::string& loss = "cross_entropy",
                      const std::string& input = "tokens")
      : modules_(test::mixer_modules(loss == "own", input == "floats")) {
    test::write_modules(modules_, modules_folder(), input, loss);
  }
  std::string modules_folder() const { return folder_.path() + "/modules"; }
  strait::Run run_of(const Sets& more) {
    const std::string data = folder_.path() + "/text.txt";
    if (!std::filesystem::exists(data)) test::write_text(folder_.path(), test::small_text(2000));
    return parse_run(
        "name = \"modules\"\n[model]\nfamily = \"modules\"\n", "modules.toml",
        test::chain_sets(
            {"data.path=" + data, "model.path=" + modules_folder(), "data.tokenizer=byte"}, more));
  }
  Trained train(int64_t ranks, const Sets& more = {}) {
    return test::trained(run_of(more), ranks, next_folder());
  }

  std::vector<test::TestModule> modules_;
};

test::TorchPeer peer_of(const std::vector<test::TestModule>& modules, at::ScalarType type,
                        bool floats) {
  test::Tensors tensors;
  for (const test::TestModule& module : modules)
    for (const auto& [name, values] : module.parameters)
      tensors[module.name + "." + name] = values.to(type);
  return test::TorchPeer(tensors, [floats](const test::Tensors& weights, const BatchBuffer& batch) {
    const auto tensor = [](const std::vector<int32_t>& words) {
      return at::tensor(std::vector<int64_t>(words.begin(), words.end()))
          .reshape({-1, test::kMixerContext});
    };
    return test::mixer_loss(weights, tensor(batch.inputs), tensor(batch.targets), floats);
  });
}

void expect_equal_to_peer(const Run& run, const std::string& folder,
                          const std::vector<test::TestModule>& modules, bool floats,
                          double tolerance) {
  const at::ScalarType type = run.train.precision == "fp64" ? at::kDouble : at::kFloat;
  test::TorchPeer peer = peer_of(modules, type, floats);
  const std::vector<double> losses = test::expect_equal_to_peer(run, folder, peer, tolerance);
  if (!floats) {
    EXPECT_LT(losses.back(), 0.95 * losses.front());
  }
}

TEST_F(ModuleRuns, TwentyStepsEqualThoseOfLibTorch) {
  const Sets whole = {"train.micro_batch_size=8", "train.clip_norm=0"};
  expect_equal_to_peer(run_of(whole), next_folder(), modules_, false, 1e-10);
  Sets narrow = whole;
  narrow.push_back("train.precision=fp32");
  expect_equal_to_peer(run_of(narrow), next_folder(), modules_, false, 1e-5);
}

TEST_F(ModuleRuns, EveryPlacementTrainsWhatOneRankTrains) {
  const Trained serial = train(1, {"placement.preset=ddp", "train.micro_batch_size=8"});
  for (const auto& [placement, ranks] : std::vector<std::pair<const char*, int64_t>>{
           {"ddp", 2}, {"zero3", 2}, {"ddp", 4}, {"zero1", 4}, {"zero2", 4}, {"zero3", 4}}) {
    SCOPED_TRACE(placement + std::string(" on ") + std::to_string(ranks));
    expect_equal(train(ranks, {std::string("placement.preset=") + placement}), serial);
  }
  // Without their codecs; these two need a level inside the outermost one.
  for (const char* placement : {"zero++", "zero-topo"}) {
    SCOPED_TRACE(placement);
    expect_equal(
        train(4, {std::string("placement.preset=") + placement, "placement.codecs.weights=none",
                  "placement.codecs.secondary=none", "placement.codecs.gradients=none",
                  "placement.codecs.update=none",
                  "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 10.0 }, { name = "
                  "\"world\", size = 0, gb_per_second = 1.0 }]"}),
        serial);
  }
}

TEST_F(ModuleRuns, PipelinesTrainWhatOneRankTrains) {
  const Trained serial = train(1, {"train.micro_batch_size=8"});
  for (const char* order : {"gpipe", "1f1b"})
    for (const int64_t stages : {2, 3}) {
      SCOPED_TRACE(order + std::string(" over ") + std::to_string(stages));
      expect_equal(
          train(stages, {"train.micro_batch_size=2", "mesh.axes.stage=" + std::to_string(stages),
                         std::string("pipeline.order=") + order}),
          serial);
    }
}

TEST_F(ModuleRuns, CodecsTrainAlongsideExactNumbers) {
  const Trained exact = train(1, {"placement.preset=ddp"});
  const Trained coded = train(4, {"placement.preset=zero3", "placement.codecs.weights=int8",
                                  "placement.codecs.gradients=int8+ef"});
  for (size_t step = 0; step < exact.losses.size(); ++step)
    EXPECT_NEAR(coded.losses[step], exact.losses[step], 0.02 * exact.losses[step]) << step;
  const Trained sent = train(
      3, {"mesh.axes.stage=3", "train.micro_batch_size=2", "pipeline.activation_codec=int8/64"});
  EXPECT_NE(sent.losses.back(), exact.losses.back());
  for (size_t step = 0; step < exact.losses.size(); ++step)
    EXPECT_NEAR(sent.losses[step], exact.losses[step], 0.02 * exact.losses[step]) << step;
  const Trained narrow = train(2, {"train.precision=bf16"});
  for (size_t step = 0; step < exact.losses.size(); ++step)
    EXPECT_NEAR(narrow.losses[step], exact.losses[step], 0x1p-6 * exact.losses[step]) << step;
}

TEST_F(ModuleRuns, ResumingUnderAnotherPlacementChangesNothing) {
  const std::string run_dir = next_folder();
  const auto until = [&](int64_t steps, int64_t ranks, const char* placement) {
    return test::trained(run_of({"train.steps=" + std::to_string(steps), "checkpoint.resume=auto",
                                 std::string("placement.preset=") + placement}),
                         ranks, run_dir);
  };
  until(7, 2, "zero1");
  expect_equal(until(20, 4, "zero3"), train(1));
}

TEST_F(ModuleRuns, MemoryIsWhatTheAllocatorSaw) {
  const train::Outcome outcome =
      test::train_small(run_of({"train.steps=2", "placement.preset=zero3"}), 2, next_folder());
  for (size_t rank = 0; rank < outcome.pool_peak_bytes.size(); ++rank)
    EXPECT_NEAR(static_cast<double>(outcome.predicted_peak_bytes[rank]),
                static_cast<double>(outcome.pool_peak_bytes[rank]),
                0.05 * static_cast<double>(outcome.pool_peak_bytes[rank]));
}

class OwnLossRuns : public ModuleRuns {
 protected:
  OwnLossRuns() : ModuleRuns("own", "floats") {}
};

TEST_F(OwnLossRuns, FloatsInAndLossesOutEqualLibTorch) {
  expect_equal_to_peer(run_of({"train.micro_batch_size=8", "train.clip_norm=0"}), next_folder(),
                       modules_, true, 1e-10);
}

/// What the run file or the folder asks for in vain ends before the first step.
class RefusedModules : public ModuleRuns {
 protected:
  void expect_refused(const Sets& sets, const std::string& key, const std::string& text) {
    SCOPED_TRACE(key + " " + text);
    try {
      make_job(run_of(sets), 2);
      FAIL() << "accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().key.value_or(""), key) << error.what();
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
  /// A file of the folder holds another module.
  void expect_file_refused(const std::string& code, const std::string& text) {
    test::TestModule module = modules_[3];  // "narrow"
    module.code = code;
    const std::string path = modules_folder() + "/narrow.pt";
    test::save_module(module, path);
    Json manifest = Json::parse(read_file(modules_folder() + "/modules.json"), "");
    std::vector<Json> blocks = manifest.at("blocks").as_array();
    blocks[3]["bytes"] = static_cast<int64_t>(std::filesystem::file_size(path));
    manifest["blocks"] = Json(blocks);
    write_file_atomically(modules_folder() + "/modules.json", manifest.dump());
    try {
      make_job(run_of({"output.run_dir=" + next_folder()}), 1);
      FAIL() << "accepted: " << code;
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().file.value_or(""), path) << error.what();
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
};

TEST_F(RefusedModules, KeysThatCannotActOnModules) {
  expect_refused({"model.shape.width=64"}, "model.shape.width", "cannot take effect");
  expect_refused({"model.shape.context=9"}, "model.shape.context", "nearest valid value is 6");
  expect_refused({"model.preset=nano-char"}, "model.preset", "cannot take effect");
  expect_refused({"mesh.axes.x=2"}, "mesh.axes.x", "nearest valid value is 1");
  expect_refused({"tensor.overlap=[\"ors\"]"}, "tensor.overlap",
                 "model.family = \"modules\", whose blocks are not cut into products and rows; the "
                 "nearest valid value is one with \"oar\"");
  expect_refused({"tensor.tiles=on"}, "tensor.tiles",
                 "model.family = \"modules\", whose blocks are not cut into products and rows; the "
                 "nearest valid value is \"auto\"");
  expect_refused({"placement.preset=zero3", "tensor.cached_gathers=99"}, "tensor.cached_gathers",
                 "blocks between the first and the last; nearest: ");
  expect_refused({"mesh.axes.stage=2", "pipeline.order=zero-bubble-h1"}, "pipeline.order",
                 "\"1f1b\"");
  expect_refused({"train.recompute=every:2"}, "train.recompute", "\"block\"");
  expect_refused({"runtime.device=cuda"}, "runtime.device", "\"cpu\"");
  expect_refused({"model.path="}, "model.path", "required");
  expect_refused({"model.path=" + folder_.path()}, "model.path", "modules.json");
  expect_refused({"model.family=gpt2"}, "model.path", "cannot take effect");
}

TEST_F(RefusedModules, FilesThatAreNotWhatTheManifestStates) {
  const std::string product = "torch.tanh(torch.matmul(x, self.weight.t()))";
  expect_file_refused("def forward(self, x):\n  return torch.matmul(x, self.weight.t()).sum()\n",
                      "states [1, 6, 7]");
  expect_file_refused("def forward(self, x):\n  return torch.dropout(" + product + ", 0.5, True)\n",
                      "random numbers");
  expect_file_refused("def forward(self, x):\n  print(x)\n  return " + product + "\n",
                      "prim::Print");
  expect_file_refused(
      "def forward(self, x):\n  y = torch.from_file('stolen', False, 1)\n  return " + product +
          " + y\n",
      "from_file");
  expect_file_refused("def forward(self, x):\n  return torch.matmul(x, self.weight)\n",
                      "fails on zeros");
}

TEST_F(RefusedModules, DamagedFiles) {
  const std::string path = modules_folder() + "/narrow.pt";
  std::string bytes = read_file(path);
  std::fill(bytes.begin() + 10, bytes.end(), 'x');
  write_file_atomically(path, bytes);
  expect_refused({}, "", "is no TorchScript file");
  write_file_atomically(path, bytes.substr(0, 100));
  expect_refused({}, "blocks[3].bytes", "has 100 bytes");
  std::filesystem::remove(path);
  expect_refused({}, "blocks[3].file", "not there");
}

TEST_F(RefusedModules, InitialValuesOfAnotherChain) {
  const std::string path = modules_folder() + "/weights.safetensors";
  const std::vector<float> values(70, 1.0f);
  checkpoint::write_safetensors(
      path, {{"narrow.weight", Dtype::kFloat32, {10, 7}, std::as_bytes(std::span(values))}});
  expect_refused({}, "embedding.position", "is not there");
}

}  // namespace
}  // namespace strait
