// The families like Llama to and from Hugging Face's form, against plain loops.
#include "tests/convert/plain_decoder.h"

#include <gmock/gmock.h>

#include "strait/base/errors.h"

namespace strait {
namespace {

using convert::convert;
using test::make_folder;
using test::plain_logits;
using test::set_config;
using test::TensorFile;
using ::testing::HasSubstr;

/// Logits reach 20, and fp32 keeps 7 digits.
constexpr double kTolerance = 1e-4;
const std::vector<int32_t> kTokens = {1, 44, 2, 297, 33, 3, 9, 0, 250, 8, 61, 121, 7, 7};

class Families : public ::testing::TestWithParam<const char*> {
 protected:
  Families() { make_folder(GetParam(), path("hf")); }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string refusal() const {
    try {
      convert(path("hf"), path("refused"), "checkpoint");
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  }
  test::TemporaryFolder folder_;
};

TEST_P(Families, LogitsEqualThePlainForm) {
  convert(path("hf"), path("run"), "checkpoint");
  const test::Logits want = plain_logits(path("hf"), kTokens);
  EXPECT_LT(distance(test::compute_logits(path("run"), kTokens), want), kTolerance);
}

TEST_P(Families, ThereAndBackKeepsEveryBit) {
  convert(path("hf"), path("run"), "checkpoint");
  convert(path("run"), path("back"), "hf");
  TensorFile before(path("hf") + "/model.safetensors"), after(path("back") + "/model.safetensors");
  ASSERT_EQ(before.tensors.size(), after.tensors.size());
  for (const auto& tensor : before.tensors) {
    EXPECT_EQ(after.at(tensor.name).dims, tensor.dims) << tensor.name;
    EXPECT_EQ(after.at(tensor.name).data, tensor.data) << tensor.name;
  }
  const Json want = Json::parse(read_file(path("hf") + "/config.json"), "config.json");
  const Json got = Json::parse(read_file(path("back") + "/config.json"), "config.json");
  for (const auto& [key, value] : want.as_object())
    EXPECT_EQ(got.at(key).dump(), value.dump()) << key;
}

TEST_P(Families, GenerationAndSpecialTokensGoWithTheExport) {
  convert(path("hf"), path("run"), "checkpoint");
  convert(path("run"), path("back"), "hf");
  const auto json = [&](const char* name) {
    return Json::parse(read_file(path("back") + "/" + name), name);
  };
  const Json end = json("config.json").at("eos_token_id");
  EXPECT_EQ(json("generation_config.json").at("eos_token_id").dump(), end.dump());
  EXPECT_EQ(json("special_tokens_map.json").at("eos_token").as_string(), "<|end_of_text|>");
  EXPECT_EQ(json("tokenizer_config.json").at("eos_token").as_string(), "<|end_of_text|>");
  EXPECT_EQ(json("tokenizer_config.json").at("model_max_length").as_integer(), 20);
}

/// Whatever they say: a chat template, other tokens that end, an older tokenizer's files.
TEST_P(Families, FilesBesideTheModelGoThereAndBackUnchanged) {
  const std::map<std::string, std::string> files = {
      {"generation_config.json", "{\"eos_token_id\": [1, 2],\n \"top_p\": 0.9}"},
      {"tokenizer_config.json", "{\"chat_template\": \"{% for m in messages %}\"}\n\n"},
      {"added_tokens.json", "{}"},
      {"chat_template.jinja", "{{ bos_token }}"},
      {"merges.txt", "#version: 0.2\n"},
      {"tokenizer.model", std::string("\n\x0e\xff\0", 4)}};
  for (const auto& [name, text] : files) write_file_atomically(path("hf") + "/" + name, text);
  convert(path("hf"), path("run"), "checkpoint");
  convert(path("hf"), path("one.safetensors"), "safetensors");
  convert(path("run"), path("back"), "hf");
  convert(path("one.safetensors"), path("from-one"), "hf");
  for (const auto& [name, text] : files) {
    EXPECT_EQ(read_file(path("back") + "/" + name), text) << name;
    if (name == "tokenizer.model") continue;
    EXPECT_EQ(read_file(path("from-one") + "/" + name), text) << name;
  }
  EXPECT_EQ(read_file(path("back") + "/tokenizer.json"), read_file(path("hf") + "/tokenizer.json"));
  EXPECT_THAT(read_file(path("back") + "/special_tokens_map.json"), HasSubstr("<|end_of_text|>"));
}

TEST(FilesBesideAModel, OfUnusualKindsAreRefusedByName) {
  const test::TemporaryFolder folder;
  const std::string hf = folder.path() + "/hf";
  make_folder("qwen2", hf);
  const auto refusal = [&] {
    try {
      convert(hf, folder.path() + "/run", "checkpoint");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  std::filesystem::create_directory(hf + "/merges.txt");
  EXPECT_THAT(refusal(), HasSubstr("merges.txt"));
  std::filesystem::remove(hf + "/merges.txt");
  write_file_atomically(hf + "/vocab.json", "{}");
  std::filesystem::resize_file(hf + "/vocab.json", (uint64_t{64} << 20) + 1);
  EXPECT_THAT(refusal(), HasSubstr("vocab.json has 67108865 bytes"));
}

TEST_P(Families, WhatWasTrainedIsReadByThePlainForm) {
  const std::string family = GetParam() == std::string("smollm") ? "llama" : GetParam();
  const auto run = test::small_run(
      folder_.path(),
      {"train.steps=4", "model.shape.bias=" + std::string(family == "qwen2" ? "true" : "false"),
       "model.family=" + family, "train.precision=fp32"});
  test::train_small(run, 2, path("trained"));
  convert(path("trained"), path("exported"), "hf");
  const std::vector<int32_t> tokens = {1, 4, 2, 7, 3, 3, 9, 0, 5, 8};
  EXPECT_LT(distance(test::compute_logits(path("trained"), tokens),
                     plain_logits(path("exported"), tokens)),
            kTolerance);
}

TEST_P(Families, WhatOurModelDoesNotComputeIsRefused) {
  set_config(path("hf"), "hidden_act", "gelu");
  EXPECT_THAT(refusal(), HasSubstr("hidden_act"));
  set_config(path("hf"), "hidden_act", "silu");
  set_config(path("hf"), "model_type", "gemma9");
  EXPECT_THAT(refusal(), HasSubstr("qwen3"));
}

INSTANTIATE_TEST_SUITE_P(All, Families,
                         ::testing::Values("smollm", "mistral", "qwen2", "qwen3", "olmo2"),
                         [](const auto& family) { return std::string(family.param); });

/// Published vocabularies are padded: Qwen's embedding has more rows than its tokenizer has tokens.
TEST(PaddedVocabulary, GoesThereAndBack) {
  const test::TemporaryFolder folder;
  const std::string hf = folder.path() + "/hf", run = folder.path() + "/run";
  make_folder("qwen2", hf);
  set_config(hf, "vocab_size", 304);
  test::change_tensors(hf, [](TensorFile& file) {
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      file.at(name).dims[0] = 304;
      file.at(name).data.resize(file.at(name).data.size() / 300 * 304);
    }
  });
  convert(hf, run, "checkpoint");
  const test::Logits want = plain_logits(hf, kTokens);
  ASSERT_EQ(want.rows.front().size(), 304u);
  EXPECT_LT(distance(test::compute_logits(run, kTokens), want), kTolerance);
  convert(run, folder.path() + "/back", "hf");
  EXPECT_EQ(TensorFile(folder.path() + "/back/model.safetensors").at("lm_head.weight").data,
            TensorFile(hf + "/model.safetensors").at("lm_head.weight").data);
  const Json config = Json::parse(read_file(folder.path() + "/back/config.json"), "config.json");
  EXPECT_EQ(config.at("vocab_size").as_integer(), 304);
}

TEST(FamilyMembers, ThatChangeTheModelAreRefused) {
  const std::tuple<const char*, const char*, Json> wrong[] = {
      {"qwen2", "use_sliding_window", true}, {"qwen3", "use_sliding_window", true},
      {"qwen3", "attention_bias", true},     {"olmo2", "attention_bias", true},
      {"mistral", "sliding_window", 0},      {"mistral", "head_dim", 7}};
  for (const auto& [family, key, value] : wrong) {
    const test::TemporaryFolder folder;
    make_folder(family, folder.path() + "/hf");
    set_config(folder.path() + "/hf", key, value);
    try {
      convert(folder.path() + "/hf", folder.path() + "/run", "checkpoint");
      ADD_FAILURE() << family << " " << key << " accepted";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(key));
    }
  }
}

}  // namespace
}  // namespace strait
