#include "strait/checkpoint/inspect.h"

#include <gmock/gmock.h>

#include <fstream>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/reader.h"
#include "tests/checkpoint/example_run.h"

namespace strait::checkpoint {
namespace {

std::vector<std::string> keys(const Json& json) {
  std::vector<std::string> names;
  for (const auto& [key, value] : json.as_object()) names.push_back(key);
  return names;
}

/// A U-Net and modules have none of a transformer's sizes.
TEST(Inspect, ModelsHaveTheSizesOfTheirFamily) {
  ModelOptions model;
  EXPECT_EQ(model_json(model, 65).at("layers").as_integer(), model.shape.layers);
  model.family = "unet";
  model.unet.channels = {8, 16};
  const Json unet = model_json(model, 0);
  EXPECT_THAT(keys(unet),
              ::testing::ElementsAre("preset", "family", "channels", "image", "attention_from",
                                     "residual_blocks", "colors", "diffusion_steps"));
  EXPECT_EQ(unet.at("channels").dump(), "[8, 16]");
  model.family = "modules";
  model.path = "a/folder";
  const Json modules = model_json(model, 65);
  EXPECT_THAT(keys(modules), ::testing::ElementsAre("family", "path", "vocabulary"));
  EXPECT_EQ(modules.at("path").as_string(), "a/folder");
}

TEST(Inspect, ReportsTheLatestCheckpoint) {
  const TemporaryFolder run;
  save_example(run.path(), 1, 1);
  const std::string path = save_example(run.path(), 2, 2);
  const Json json = inspect(run.path());
  EXPECT_THAT(keys(json),
              ::testing::ElementsAre("path", "complete", "step", "tokens", "ranks", "placement",
                                     "mesh", "model", "parameters", "parameter_hash",
                                     "validation_loss", "files", "tensors", "states"));
  EXPECT_EQ(json.at("path").as_string(), path);
  EXPECT_TRUE(json.at("complete").as_bool());
  EXPECT_EQ(json.at("step").as_integer(), 2);
  EXPECT_EQ(json.at("tokens").as_integer(), 2048);
  EXPECT_EQ(json.at("ranks").as_integer(), 2);
  EXPECT_EQ(json.at("placement").as_string(), "zero3");
  EXPECT_EQ(json.at("mesh").at("data").as_integer(), 2);
  EXPECT_EQ(json.at("model").at("preset").as_string(), "example");
  EXPECT_EQ(json.at("parameters").as_integer(), 161);
  EXPECT_EQ(json.at("parameter_hash").as_string(), stored_parameter_hash(CheckpointReader(path)));
  EXPECT_EQ(json.at("files").size(), 4u);
  for (const Json& file : json.at("files").as_array()) {
    EXPECT_THAT(keys(file), ::testing::ElementsAre("name", "bytes", "hash", "ok"));
    EXPECT_TRUE(file.at("ok").as_bool());
    EXPECT_EQ(
        file.at("bytes").as_integer(),
        static_cast<int64_t>(std::filesystem::file_size(path + "/" + file.at("name").as_string())));
  }
}

TEST(Inspect, TensorsAreTheParameters) {
  const TemporaryFolder run;
  save_example(run.path(), 1, 2);
  std::vector<std::string> lines;
  const Json json = inspect(run.path());
  for (const Json& tensor : json.at("tensors").as_array()) lines.push_back(tensor.dump());
  const auto line = [](const char* name, const char* shape, int rank) {
    return std::string("{\"name\": \"") + name + "\", \"dtype\": \"fp32\", \"shape\": " + shape +
           ", \"file\": \"rank-0000" + std::to_string(rank) + ".safetensors\"}";
  };
  // Two ranks cut embedding at 51, blocks.0 at 28, head at 0.
  EXPECT_THAT(lines, ::testing::ElementsAre(
                         line("tokens.weight", "[10, 10]", 0), line("norm.bias", "[3]", 1),
                         line("blocks.0.up.weight", "[7, 8]", 0), line("blocks.0.scale", "[]", 1),
                         line("head.bias", "[1]", 1)));
}

TEST(Inspect, StatesAreSummedUp) {
  const TemporaryFolder run;
  const std::string folder = begin_save(run.path(), 1);
  Manifest manifest = example_manifest(1, 2, 1);
  for (int64_t rank = 0; rank < 2; ++rank) {
    std::vector<std::byte> memory = example_bytes(1, {"blocks.0", kMaster, 0, 57});
    StateRange columns = with_runs({"blocks.0", kMaster}, {{4 * rank, 4, 7, 8}});
    StateRange residual{"blocks.0", "residual/0", 0, 57};
    residual.sender = rank;
    std::vector<ShardView> shards = {{columns, memory.data()}, {residual, memory.data()}};
    if (rank == 1) shards.push_back({{"blocks.0", kMaster, 56, 57}, memory.data()});
    manifest.add(write_rank_file(folder, rank, shards));
  }
  const Json json = inspect(publish(folder, manifest));
  std::vector<std::string> lines;
  for (const Json& state : json.at("states").as_array()) lines.push_back(state.dump());
  EXPECT_THAT(lines, ::testing::ElementsAre(
                         "{\"name\": \"master\", \"dtype\": \"fp32\", \"elements\": 57, "
                         "\"bytes\": 228, \"shards\": 3, \"senders\": 0}",
                         "{\"name\": \"residual/0\", \"dtype\": \"fp32\", \"elements\": 114, "
                         "\"bytes\": 456, \"shards\": 2, \"senders\": 2}"));
  // The first element of blocks.0.scale is the 57th.
  EXPECT_EQ(json.at("tensors").as_array()[3].at("file").as_string(), "rank-00001.safetensors");
}

TEST(Inspect, DamageIsShown) {
  const TemporaryFolder run;
  const std::string path = save_example(run.path(), 1, 2);
  std::string contents = read_file(path + "/rank-00001.safetensors");
  contents.back() = static_cast<char>(contents.back() ^ 1);
  std::ofstream(path + "/rank-00001.safetensors", std::ios::binary) << contents;
  const auto oks = [&] {
    std::vector<bool> values;
    const Json json = inspect(path);
    for (const Json& file : json.at("files").as_array()) values.push_back(file.at("ok").as_bool());
    return values;
  };
  EXPECT_THAT(oks(), ::testing::ElementsAre(true, false, true, true));
  EXPECT_TRUE(inspect(path).at("complete").as_bool());
  std::filesystem::remove(path + "/tokenizer.json");
  EXPECT_THAT(oks(), ::testing::ElementsAre(true, false, false, true));
  EXPECT_FALSE(inspect(path).at("complete").as_bool());
  EXPECT_THROW(inspect(run.path()), UserError) << "a run folder is asked for a complete one";
  std::filesystem::remove(path + "/manifest.json");
  EXPECT_THROW(inspect(path), UserError);
}

}  // namespace
}  // namespace strait::checkpoint
