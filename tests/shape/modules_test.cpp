// Manifests of chains of modules, good and hostile; what a chain costs.
#include "strait/shape/modules.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <tuple>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/json.h"

namespace strait {
namespace {

/// Two blocks of a context of 4 and 50 tokens.
class Manifests : public ::testing::Test {
 protected:
  Manifests() {
    for (const char* name : {"a.pt", "b.pt", "w.safetensors"})
      write_file_atomically(folder_ + "/" + name, "0123456789");
    const auto block = [](const char* name, const char* file, std::vector<int64_t> output) {
      Json parameters = Json::array();
      parameters.push_back(Json::object({{"name", "bias"}, {"dims", std::vector<int64_t>{3}}}));
      parameters.push_back(
          Json::object({{"name", "weight"}, {"dims", std::vector<int64_t>{3, 5}}}));
      return Json::object({{"name", name},
                           {"file", file},
                           {"bytes", 10},
                           {"output", output},
                           {"forward_flops", 120.0},
                           {"parameters", parameters}});
    };
    Json blocks = Json::array();
    blocks.push_back(block("first", "a.pt", {2, 3}));
    blocks.push_back(block("last", "b.pt", {4, 50}));
    manifest_ = Json::object({{"format", "strait-modules"},
                              {"version", 1},
                              {"vocabulary", 50},
                              {"context", 4},
                              {"input", "tokens"},
                              {"loss", "cross_entropy"},
                              {"weights", "w.safetensors"},
                              {"blocks", blocks}});
  }
  ~Manifests() override { std::filesystem::remove_all(folder_); }

  std::shared_ptr<const ModuleChain> read(const Json& manifest) {
    write_file_atomically(folder_ + "/modules.json", manifest.dump());
    return read_modules(folder_);
  }
  /// The manifest with a member of its first block replaced.
  Json with_block(const char* member, Json value) const {
    Json manifest = manifest_;
    std::vector<Json> blocks = manifest.at("blocks").as_array();
    blocks[0][member] = std::move(value);
    manifest["blocks"] = Json(blocks);
    return manifest;
  }
  Json with(const char* member, Json value) const {
    Json manifest = manifest_;
    manifest[member] = std::move(value);
    return manifest;
  }
  void expect_refused(const Json& manifest, const std::string& key, const std::string& text = "") {
    try {
      read(manifest);
      ADD_FAILURE() << "accepted " << key;
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().key.value_or(""), key) << error.what();
      EXPECT_EQ(error.place().file.value_or(""), folder_ + "/modules.json");
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }

  std::string folder_ = [] {
    std::string path = (std::filesystem::temp_directory_path() / "strait-manifest-XXXXXX").string();
    return std::string(mkdtemp(path.data()));
  }();
  Json manifest_;
};

TEST_F(Manifests, BecomeAShape) {
  ModelOptions model;
  model.family = kModulesFamily;
  model.modules = read(manifest_);
  const ModelShape shape = model_shape(model, 40);
  EXPECT_EQ(shape.vocabulary, 50);
  EXPECT_EQ(shape.parameters(), 36);
  ASSERT_EQ(shape.units.size(), 2u);
  // Decayed first: the matrix.
  EXPECT_EQ(shape.units[0].parameters[0].name, "first.weight");
  EXPECT_TRUE(shape.units[0].parameters[0].weight_decay);
  EXPECT_EQ(shape.units[0].parameters[1].offset, 15);
  EXPECT_FALSE(shape.units[0].parameters[1].weight_decay);
  const BlockSizes first = block_sizes(shape, 0, 3, 4, Dtype::kFloat32);
  EXPECT_EQ(first.output_bytes, 3 * 6 * 4);
  EXPECT_EQ(first.forward_flops, 360);
  EXPECT_EQ(first.backward_flops, 3 * 360);
  EXPECT_EQ(block_sizes(shape, 1, 3, 4, Dtype::kFloat32).input_bytes, 3 * 6 * 4);
  EXPECT_EQ(model_flops_per_token(shape, 4), 3 * 240.0 / 4);
  EXPECT_THROW(model_shape(model, 51), UserError);
}

Json work(Json calls, Json activations, Json passed) {
  return Json::object({{"calls", std::move(calls)},
                       {"activations", std::move(activations)},
                       {"passed", std::move(passed)}});
}

TEST_F(Manifests, SayWhatLibTorchDoesBesideProducts) {
  Json manifest = with_block("work", work(7, 12, 30));
  manifest["loss"] = "own";
  std::vector<Json> blocks = manifest.at("blocks").as_array();
  blocks[1]["output"] = std::vector<int64_t>{4};
  blocks[1]["work"] = work(2, 1, 0);
  manifest["blocks"] = Json(blocks);
  const auto chain = read(manifest);
  for (const auto& [batch, dtype, bytes] :
       {std::tuple<int64_t, Dtype, double>{1, Dtype::kFloat32, 4},
        {3, Dtype::kFloat64, 8},
        {16, Dtype::kBfloat16, 2}}) {
    const BlockSizes first = module_sizes(*chain, 0, batch, dtype);
    const auto sequences = static_cast<double>(batch);
    EXPECT_EQ(first.forward_library.calls, 7);
    EXPECT_EQ(first.forward_library.activations, 12 * sequences);
    EXPECT_EQ(first.forward_library.passed_bytes, 30 * bytes * sequences);
    EXPECT_EQ(first.forward_library.bytes, 0);  // not known
    // The forward again; gradients of both operands of a product, of one of an activation; 4 calls
    // for each parameter.
    EXPECT_EQ(first.backward_library.calls, 3 * 7 + 2 * 4);
    EXPECT_EQ(first.backward_library.activations, 2 * 12 * sequences);
    EXPECT_EQ(first.backward_library.passed_bytes, 2.5 * 30 * bytes * sequences);
    EXPECT_EQ(first.backward_library.bytes, 0);
    EXPECT_EQ(module_sizes(*chain, 1, batch, dtype).forward_library.activations, sequences);
  }
}

TEST_F(Manifests, WithoutWorkHaveThatOfOneCallAndTheLoss) {
  const auto chain = read(manifest_);
  const BlockSizes first = module_sizes(*chain, 0, 3, Dtype::kFloat32);
  EXPECT_EQ(first.forward_library.calls, 1);
  EXPECT_EQ(first.forward_library.activations, 0);
  EXPECT_EQ(first.forward_library.passed_bytes, 0);
  // Of 4 tokens, logits of 50.
  const BlockSizes last = module_sizes(*chain, 1, 3, Dtype::kFloat32);
  EXPECT_EQ(last.forward_library.activations, 3 * 4 * 50);
  EXPECT_GT(last.forward_library.calls, 1);
  EXPECT_GT(last.forward_library.passed_bytes, 3 * 4 * 50 * 4);
}

/// Blocks roll into one loop where nothing tells them apart.
TEST_F(Manifests, WhoseBlocksDifferInWorkHaveBlocksOfTheirOwn) {
  const auto signature = [&](const Json& manifest) {
    ModelOptions model;
    model.family = kModulesFamily;
    model.modules = read(manifest);
    return model_shape(model, 50).blocks[0].signature;
  };
  const std::string plain = signature(with_block("work", work(7, 12, 30)));
  EXPECT_EQ(plain, signature(with_block("work", work(7, 12, 30))));
  for (const Json& other : {work(8, 12, 30), work(7, 13, 30), work(7, 12, 31)})
    EXPECT_NE(plain, signature(with_block("work", other)));
}

TEST_F(Manifests, WithWrongWorkAreRefusedByKey) {
  expect_refused(with_block("work", Json(7)), "blocks[0].work", "no object");
  expect_refused(with_block("work", Json::object({{"calls", 7}, {"passed", 7}})), "blocks[0].work",
                 "lacks \"activations\"");
  Json more = work(7, 12, 30);
  more["flops"] = 7;
  expect_refused(with_block("work", more), "blocks[0].work.flops", "unknown");
  expect_refused(with_block("work", work(0, 12, 30)), "blocks[0].work.calls", "valid value is 1");
  expect_refused(with_block("work", work(7.5, 12, 30)), "blocks[0].work.calls", "no whole number");
  expect_refused(with_block("work", work(7, -1, 30)), "blocks[0].work.activations",
                 "valid value is 0");
  expect_refused(with_block("work", work(7, 12, "30")), "blocks[0].work.passed", "no whole number");
  expect_refused(with_block("work", work(7, 12, 1e300)), "blocks[0].work.passed");
  expect_refused(with_block("work", work(7, 12, int64_t{1} << 60)), "blocks[0].work.passed",
                 "out of range");
}

TEST_F(Manifests, WithWrongSizesAreRefusedByKey) {
  expect_refused(with("vocabulary", 0), "vocabulary", "nearest valid value is 1");
  expect_refused(with("vocabulary", 51), "blocks[1].output", "[4, 51]");
  expect_refused(with("context", "4"), "context", "no whole number");
  expect_refused(with("version", 2), "version");
  expect_refused(with("loss", "entropy"), "loss", "cross_entropy");
  expect_refused(with("input", "bytes"), "input");
  expect_refused(with("wieghts", "x"), "wieghts", "\"weights\"");
  expect_refused(with("blocks", Json::array()), "blocks", "nearest valid number is 2");
  expect_refused(with_block("output", std::vector<int64_t>{1 << 30, 1 << 30}), "blocks[0].output");
  expect_refused(with_block("output", std::vector<int64_t>{-1}), "blocks[0].output[0]");
  expect_refused(with_block("forward_flops", -1.0), "blocks[0].forward_flops");
  expect_refused(with_block("bytes", 11), "blocks[0].bytes", "has 10 bytes");
  expect_refused(with_block("name", "last"), "blocks[1].name", "twice");
  expect_refused(with_block("parameters", Json::array()), "blocks[0].parameters");
  expect_refused(with_block("parameters", Json(7)), "blocks[0].parameters", "no array");
}

TEST_F(Manifests, WithFilesOutsideAreRefused) {
  for (const char* name : {"../a.pt", "/etc/passwd", "..", ".hidden", "", "a/b.pt", "c:\\a"})
    expect_refused(with_block("file", name), "blocks[0].file", "is no name");
  expect_refused(with_block("file", "missing.pt"), "blocks[0].file", "not there");
  std::filesystem::create_symlink("/etc/passwd", folder_ + "/link.pt");
  expect_refused(with_block("file", "link.pt"), "blocks[0].file", "leads out of the folder");
  std::filesystem::create_directory(folder_ + "/inner");
  expect_refused(with_block("file", "inner"), "blocks[0].file", "no file");
  expect_refused(with("weights", "../w"), "weights", "is no name");
}

TEST_F(Manifests, ThatAreMissingNameTheKeyOfTheRunFile) {
  for (const std::string& folder : {std::string(), folder_ + "/nothing", folder_}) {
    try {
      read_modules(folder);
      ADD_FAILURE() << "accepted " << folder;
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().key.value_or(""), "model.path") << error.what();
    }
  }
}

}  // namespace
}  // namespace strait
