// The committed models of independent implementations (bench/peers/gpt2_hugging_face.py and
// llama_hugging_face.py), copies of them to damage, and the logits that our model computes from a
// checkpoint.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "strait/base/file.h"
#include "strait/checkpoint/files/safetensors.h"
#include "strait/checkpoint/reader.h"
#include "strait/comm/threads/thread_world.h"
#include "strait/config/parse.h"
#include "strait/convert/convert.h"
#include "strait/tokenizer/tokenizer.h"
#include "strait/train/generate.h"
#include "tests/paths.h"
#include "tests/train/small_run.h"

namespace strait::test {

inline const std::string kFixture = test::in_source("tests/fixtures/gpt2-hugging-face");
inline const std::string kLlamaFixture = test::in_source("tests/fixtures/llama-hugging-face");

/// A safetensors file in memory, to be changed and written again.
struct TensorFile {
  struct Tensor {
    std::string name;
    Dtype dtype = Dtype::kFloat32;
    std::vector<int64_t> dims;
    std::vector<std::byte> data;
  };
  std::vector<Tensor> tensors;
  checkpoint::Metadata metadata;

  explicit TensorFile(const std::string& path) {
    const checkpoint::SafetensorsFile file(path);
    metadata = file.metadata();
    for (const checkpoint::TensorInfo& info : file.tensors()) {
      Tensor tensor{info.name, info.dtype, info.dims, {}};
      tensor.data.resize(static_cast<size_t>(info.end - info.begin));
      file.read_tensor(info, tensor.data);
      tensors.push_back(std::move(tensor));
    }
  }
  Tensor& at(const std::string& name) {
    for (Tensor& tensor : tensors)
      if (tensor.name == name) return tensor;
    throw std::runtime_error("no tensor " + name);
  }
  void write(const std::string& path) const {
    std::vector<checkpoint::TensorView> views;
    for (const Tensor& tensor : tensors)
      views.push_back({tensor.name, tensor.dtype, tensor.dims, tensor.data});
    checkpoint::write_safetensors(path, views, metadata);
  }
};

/// A copy of a fixture in `folder`, without the expected logits.
inline std::string copy_fixture(const std::string& folder, const std::string& name = "hf",
                                const std::string& fixture = kFixture) {
  const std::string copy = folder + "/" + name;
  std::filesystem::create_directories(copy);
  for (const char* file : {"config.json", "tokenizer.json", "model.safetensors"})
    std::filesystem::copy_file(fixture + "/" + file, copy + "/" + file);
  return copy;
}

/// Sets a member of the folder's config.json.
inline void set_config(const std::string& folder, const std::string& key, const Json& value) {
  Json config = Json::parse(read_file(folder + "/config.json"), "config.json");
  config[key] = value;
  write_file_atomically(folder + "/config.json", config.dump());
}

/// Changes the tensors of a folder's model.safetensors.
inline void change_tensors(const std::string& folder,
                           const std::function<void(TensorFile&)>& change) {
  TensorFile file(folder + "/model.safetensors");
  change(file);
  file.write(folder + "/model.safetensors");
}

struct Logits {
  std::vector<int32_t> tokens;
  std::vector<std::vector<double>> rows;  // behind each token
};

/// What the independent implementation computed.
inline Logits read_logits(const std::string& path) {
  TensorFile file(path);
  const TensorFile::Tensor &tokens = file.at("tokens"), &logits = file.at("logits");
  Logits read;
  for (int64_t i = 0; i < tokens.dims[0]; ++i) {
    int64_t token = 0;
    std::memcpy(&token, tokens.data.data() + 8 * i, 8);
    read.tokens.push_back(static_cast<int32_t>(token));
    std::vector<double>& row = read.rows.emplace_back(static_cast<size_t>(logits.dims[1]));
    std::memcpy(row.data(), logits.data.data() + 8 * i * logits.dims[1], row.size() * 8);
  }
  return read;
}

/// What our model computes from the weights of a checkpoint.
inline Logits compute_logits(const std::string& checkpoint, const std::vector<int32_t>& tokens) {
  const checkpoint::CheckpointReader reader(checkpoint);
  const Run run = parse_run(reader.read_text("run.toml"), "run.toml");
  const auto tokenizer = parse_tokenizer(reader.read_text("tokenizer.json"), "tokenizer.json");
  const ModelShape shape = model_shape(run.model, tokenizer->vocabulary_size());
  Cluster cluster;
  cluster.name = "one";
  cluster.levels = {{"world", 1, 1e9, 0, 1}};
  const auto worlds = comm::make_thread_worlds(1, cluster);
  const Dtype dtype = run.train.precision == "fp64" ? Dtype::kFloat64 : Dtype::kFloat32;
  train::Generator generator(shape, {dtype, 1}, worlds->world(0), reader);
  Logits computed{tokens, {}};
  for (const int32_t token : tokens) computed.rows.push_back(generator.feed({&token, 1}));
  return computed;
}

/// The largest difference of two sets of logits.
inline double distance(const Logits& a, const Logits& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.rows.size(), b.rows.size());
  double largest = 0;
  for (size_t row = 0; row < a.rows.size(); ++row)
    for (size_t i = 0; i < a.rows[row].size(); ++i)
      largest = std::max(largest, std::abs(a.rows[row][i] - b.rows.at(row).at(i)));
  return largest;
}

}  // namespace strait::test
