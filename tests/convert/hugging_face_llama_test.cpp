// Llama to and from Hugging Face's form, held against an implementation that shares no line with
// ours.
#include <limits>

#include "tests/convert/hugging_face_fixture.h"
#include "tests/paths.h"

namespace strait {
namespace {

namespace fs = std::filesystem;
using convert::convert;
using test::change_tensors;
using test::compute_logits;
using test::kLlamaFixture;
using test::kLogitTolerance;
using test::set_config;
using test::TensorFile;
using ::testing::AllOf;
using ::testing::HasSubstr;

class HuggingFaceLlama : public test::HuggingFaceFixture {
 protected:
  HuggingFaceLlama() : HuggingFaceFixture(kLlamaFixture) {}
};

TEST_F(HuggingFaceLlama, LogitsEqualThoseOfTheIndependentImplementation) {
  ASSERT_EQ(expected_.rows.size(), 20u);
  ASSERT_EQ(expected_.rows.front().size(), 300u);
  EXPECT_LT(distance(imported(kLlamaFixture, "run"), expected_), kLogitTolerance);
}

TEST_F(HuggingFaceLlama, EveryPartOfTheConfigurationMatters) {
  const std::pair<const char*, Json> changes[] = {
      {"rope_theta", 10000.0}, {"rope_scaling", Json()}, {"rms_norm_eps", 1e-2}};
  for (const auto& [key, value] : changes) {
    const std::string hf = copy(key);
    set_config(hf, key, value);
    EXPECT_GT(distance(imported(hf, std::string(key) + "-run"), expected_), 1e-3) << key;
  }
}

TEST_F(HuggingFaceLlama, NewerRopeParametersAreTheSameModel) {
  const std::string hf = copy();
  const Json config = Json::parse(read_file(hf + "/config.json"), "config.json");
  Json parameters = config.at("rope_scaling");
  parameters["rope_theta"] = config.at("rope_theta");
  set_config(hf, "rope_scaling", Json());
  set_config(hf, "rope_theta", Json());
  set_config(hf, "rope_parameters", parameters);
  EXPECT_LT(distance(imported(hf, "run"), expected_), kLogitTolerance);
}

TEST_F(HuggingFaceLlama, ShardsWithAnIndexOldTensorsAndPlainNamesAreTheSameModel) {
  const std::string hf = copy();
  change_tensors(hf, [](TensorFile& file) {
    for (auto& tensor : file.tensors)
      if (tensor.name.starts_with("model.")) tensor.name = tensor.name.substr(6);
    file.tensors.push_back({"layers.0.self_attn.rotary_emb.inv_freq",
                            Dtype::kFloat32,
                            {4},
                            std::vector<std::byte>(16)});
  });
  const TensorFile whole(hf + "/model.safetensors");
  fs::remove(hf + "/model.safetensors");
  Json map = Json::object();
  for (size_t shard = 0; shard < 2; ++shard) {
    TensorFile part = whole;
    part.tensors.clear();
    const std::string name = "model-0000" + std::to_string(shard + 1) + "-of-00002.safetensors";
    for (size_t i = shard; i < whole.tensors.size(); i += 2) {
      part.tensors.push_back(whole.tensors[i]);
      map[whole.tensors[i].name] = name;
    }
    part.write(hf + "/" + name);
  }
  write_file_atomically(hf + "/model.safetensors.index.json",
                        Json::object({{"weight_map", map}}).dump());
  EXPECT_LT(distance(imported(hf, "run"), expected_), kLogitTolerance);
}

TEST_F(HuggingFaceLlama, ThereAndBackKeepsEveryBit) {
  convert(kLlamaFixture, path("run"), "");
  convert(path("run"), path("back"), "");
  TensorFile before(kLlamaFixture + "/model.safetensors"),
      after(path("back") + "/model.safetensors");
  ASSERT_EQ(before.tensors.size(), after.tensors.size());
  for (const auto& tensor : before.tensors) {
    EXPECT_EQ(after.at(tensor.name).dims, tensor.dims) << tensor.name;
    EXPECT_EQ(after.at(tensor.name).data, tensor.data) << tensor.name;
  }
  const Json want = Json::parse(read_file(kLlamaFixture + "/config.json"), "config.json");
  const Json got = Json::parse(read_file(path("back") + "/config.json"), "config.json");
  for (const auto& [key, value] : want.as_object())
    EXPECT_EQ(got.at(key).dump(), value.dump()) << key;
  EXPECT_EQ(load_tokenizer(path("back") + "/tokenizer.json")->encode("ship 123 the strait!!!"),
            load_tokenizer(kLlamaFixture + "/tokenizer.json")->encode("ship 123 the strait!!!"));
}

TEST_F(HuggingFaceLlama, WhatOurModelDoesNotComputeIsRefusedByName) {
  const std::pair<const char*, Json> wrong[] = {
      {"hidden_act", "gelu"},
      {"model_type", "gemma9"},
      {"head_dim", 15},
      {"num_attention_heads", 5},
      {"num_key_value_heads", 3},
      {"mlp_bias", true},
      {"rms_norm_eps", 0.0},
      {"rope_theta", -1.0},
      {"rope_scaling", Json::object({{"rope_type", "yarn"}, {"factor", 4.0}})},
      {"rope_scaling", "yarn"},
      {"rope_scaling", Json::object({{"factor", 4.0}})},
      {"rope_parameters", 1.5},
      {"rope_scaling", Json::object({{"rope_type", "linear"}, {"factor", 0.5}})},
      {"rope_scaling", Json::object({{"rope_type", "linear"}, {"factor", "x"}})},
      {"rope_scaling", Json::object({{"rope_type", "llama3"}, {"low_freq_factor", 4.0}})},
      {"rope_scaling", Json::object({{"rope_type", "llama3"},
                                     {"low_freq_factor", 0.01},
                                     {"original_max_position_embeddings", 1}})},
      {"attention_dropout", 1.5},
      {"attention_dropout", -0.1},
      {"partial_rotary_factor", 0.5},
      {"num_hidden_layers", "two"},
      {"num_hidden_layers", int64_t{1} << 62},
      {"num_attention_heads", int64_t{1} << 62},
      {"hidden_size", int64_t{1} << 62},
      {"intermediate_size", std::numeric_limits<int64_t>::max()},
      {"max_position_embeddings", int64_t{1} << 62},
      {"vocab_size", 299}};
  for (const auto& [key, value] : wrong) {
    const std::string hf = copy(std::string("wrong-") + key);
    set_config(hf, key, value);
    EXPECT_THAT(refusal(hf), AllOf(HasSubstr("config.json"), HasSubstr(key)));
    fs::remove_all(hf);
  }
  const auto damaged = [&](const std::function<void(TensorFile&)>& change) {
    const std::string hf = copy();
    change_tensors(hf, change);
    const std::string message = refusal(hf);
    fs::remove_all(hf);
    return message;
  };
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  EXPECT_THAT(damaged([&](TensorFile& file) {
                file.at(name).dims = {32, 16};
              }),
              AllOf(HasSubstr(name), HasSubstr("[32, 16]"), HasSubstr("[16, 32]")));
  EXPECT_THAT(damaged([&](TensorFile& file) { file.at(name).name += "s"; }),
              AllOf(HasSubstr("layers.1.self_attn.k_proj.weight"), HasSubstr("nearest")));
  EXPECT_THAT(damaged([&](TensorFile& file) {
                file.tensors.push_back({"model.layers.1.self_attn.q_proj.bias",
                                        Dtype::kFloat32,
                                        {32},
                                        std::vector<std::byte>(128)});
              }),
              AllOf(HasSubstr("q_proj.bias"), HasSubstr("Llama")));
  const std::string tied = copy("tied");
  set_config(tied, "tie_word_embeddings", true);
  EXPECT_THAT(refusal(tied), AllOf(HasSubstr("lm_head.weight differs"), HasSubstr("embed_tokens")));
}

/// The independent implementation as a program; its exit code.
int peer(const std::string& arguments, const std::string& log) {
  const std::string command = "/usr/bin/python3 -B " +
                              test::in_source("bench/peers/llama_hugging_face.py ") + arguments +
                              " >" + log + " 2>&1";
  return WEXITSTATUS(std::system(command.c_str()));
}

TEST_F(HuggingFaceLlama, ExportsAreReadBackByTheIndependentImplementation) {
  if (std::system("/usr/bin/python3 -c 'import torch' >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "/usr/bin/python3 has no torch; tools/setup --peers installs it";
  const std::string log = path("log");
  const auto agrees = [&](const std::string& run_dir) {
    convert(run_dir, run_dir + "-hf", "hf");
    const std::string out = run_dir + ".logits";
    ASSERT_EQ(peer("logits " + run_dir + "-hf 1,4,2,7,3,3,9,0,5,8 " + out, log), 0)
        << read_file(log);
    const test::Logits theirs = test::read_logits(out);
    EXPECT_LT(distance(compute_logits(run_dir, theirs.tokens), theirs), kLogitTolerance) << run_dir;
  };
  convert(kLlamaFixture, path("imported"), "checkpoint");
  agrees(path("imported"));
  int number = 0;
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{
           {"train.precision=fp32", "model.shape.kv_heads=1"},
           {"model.shape.bias=false", "model.shape.norm_eps=1e-2", "model.rope.theta=200.0"},
           {"model.shape.tied_head=false", "data.tokenizer=bpe:300", "model.rope.factor=4.0",
            "model.rope.original_context=8"}}) {
    std::vector<std::string> all = {"train.steps=4", "model.family=llama"};
    all.insert(all.end(), sets.begin(), sets.end());
    const std::string run_dir = path("trained" + std::to_string(number++));
    test::train_small(test::small_run(folder_.path(), all), 2, run_dir);
    agrees(run_dir);
  }
  // What it makes anew is what is committed.
  ASSERT_EQ(peer("make " + path("made"), log), 0) << read_file(log);
  EXPECT_LT(distance(test::read_logits(path("made") + "/expected.safetensors"), expected_), 1e-9);
}

}  // namespace
}  // namespace strait
