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

TEST_P(Families, TokensThatBeginAndEndTextsGoThereAndBack) {
  const std::string file = path("hf") + "/config.json";
  Json config = Json::parse(read_file(file), file);
  config["bos_token_id"] = 5;
  config["eos_token_id"] = Json::Array{Json(1), Json(2)};
  write_file_atomically(file, config.dump());
  convert(path("hf"), path("run"), "checkpoint");
  convert(path("run"), path("back"), "hf");
  for (const char* name : {"config.json", "generation_config.json"}) {
    const Json back = Json::parse(read_file(path("back") + "/" + name), name);
    EXPECT_EQ(back.at("bos_token_id").dump(), "5") << name;
    EXPECT_EQ(back.at("eos_token_id").dump(), config.at("eos_token_id").dump()) << name;
  }
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
  std::vector<std::string> sets = {
      "train.steps=4", "model.shape.bias=" + std::string(family == "qwen2" ? "true" : "false"),
      "model.family=" + family, "train.precision=fp32"};
  if (family == "gemma3")
    sets.insert(sets.end(), {"model.shape.window=4", "model.shape.window_pattern=2"});
  const auto run = test::small_run(folder_.path(), sets);
  test::train_small(run, 2, path("trained"));
  convert(path("trained"), path("exported"), "hf");
  const std::vector<int32_t> tokens = {1, 4, 2, 7, 3, 3, 9, 0, 5, 8};
  EXPECT_LT(distance(test::compute_logits(path("trained"), tokens),
                     plain_logits(path("exported"), tokens)),
            kTolerance);
}

TEST_P(Families, WhatOurModelDoesNotComputeIsRefused) {
  const bool gemma = std::string(GetParam()).starts_with("gemma");
  const char* const key = gemma ? "hidden_activation" : "hidden_act";
  set_config(path("hf"), key, "gelu");
  EXPECT_THAT(refusal(), HasSubstr(key));
  set_config(path("hf"), key, gemma ? "gelu_pytorch_tanh" : "silu");
  set_config(path("hf"), "model_type", "gemma9");
  EXPECT_THAT(refusal(), HasSubstr("qwen3"));
}

INSTANTIATE_TEST_SUITE_P(All, Families,
                         ::testing::Values("smollm", "mistral", "qwen2", "qwen3", "olmo2", "gemma2",
                                           "gemma3"),
                         [](const auto& family) { return std::string(family.param); });

/// Gemma 3's layers by number as the first files say it, by type as later ones do; RoPE likewise.
class GemmaMembers : public ::testing::Test {
 protected:
  GemmaMembers() { make_folder("gemma3", path("hf")); }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  /// Sets members of config.json; null ones are dropped.
  void set(const std::vector<std::pair<std::string, Json>>& members) {
    Json config = Json::object();
    const Json before = Json::parse(read_file(path("hf") + "/config.json"), "config.json");
    for (const auto& [key, value] : before.as_object()) config[key] = value;
    for (const auto& [key, value] : members) config[key] = value;
    Json kept = Json::object();
    for (const auto& [key, value] : config.as_object())
      if (!value.is_null()) kept[key] = value;
    write_file_atomically(path("hf") + "/config.json", kept.dump());
  }
  ShapeOptions imported() {
    std::filesystem::remove_all(path("run"));
    convert(path("hf"), path("run"), "checkpoint");
    return parse_run(checkpoint::CheckpointReader(path("run")).read_text("run.toml"), "run.toml")
        .model.shape;
  }
  /// Behind the 300 tokens of tokenizer.json.
  void add_special(const std::vector<std::string>& texts) {
    Json tokenizer = Json::parse(read_file(path("hf") + "/tokenizer.json"), "tokenizer.json");
    Json::Array added = tokenizer.at("added_tokens").as_array();
    int64_t number = 300;
    for (const std::string& text : texts)
      added.push_back(Json::object({{"id", number++},
                                    {"content", text},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}}));
    tokenizer["added_tokens"] = added;
    write_file_atomically(path("hf") + "/tokenizer.json", tokenizer.dump());
  }
  static Json types(const std::string& letters) {
    std::vector<std::string> names;
    for (const char letter : letters)
      names.emplace_back(letter == 'f' ? "full_attention" : "sliding_attention");
    return names;
  }
  test::TemporaryFolder folder_;
};

TEST_F(GemmaMembers, LayersByNumberOrByType) {
  EXPECT_EQ(imported().window_pattern, 3);
  set({{"sliding_window_pattern", Json()}});
  EXPECT_EQ(imported().window_pattern, 3) << "of the types";
  set({{"layer_types", types("lflf")}, {"sliding_window_pattern", 6}});
  EXPECT_EQ(imported().window_pattern, 2) << "types outrank the number";
  set({{"layer_types", types("llll")}});
  EXPECT_EQ(imported().window_pattern, 6) << "which says the same of four layers";
  set({{"layer_types", types("llll")}, {"sliding_window_pattern", 2}});
  EXPECT_EQ(imported().window_pattern, 0);
  set({{"layer_types", Json()},
       {"sliding_window_pattern", Json()},
       {"_sliding_window_pattern", 4}});
  EXPECT_EQ(imported().window_pattern, 4);
  set({{"_sliding_window_pattern", 5}});
  EXPECT_EQ(imported().window_pattern, 0) << "of four layers";
  set({{"_sliding_window_pattern", 1}});
  EXPECT_EQ(imported().window, 0) << "all attend all";
  set({{"layer_types", types("flll")}});
  try {
    imported();
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("layer_types"));
    EXPECT_THAT(error.what(), HasSubstr("the nearest"));
  }
}

TEST_F(GemmaMembers, ParametersOfRopeByLayer) {
  const test::Logits want = plain_logits(path("hf"), kTokens);
  set({{"rope_theta", Json()},
       {"rope_scaling", Json()},
       {"rope_local_base_freq", Json()},
       {"rope_parameters",
        Json::object(
            {{"full_attention",
              Json::object({{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 700.0}})},
             {"sliding_attention",
              Json::object({{"rope_type", "default"}, {"rope_theta", 30.0}})}})}});
  imported();
  EXPECT_LT(distance(test::compute_logits(path("run"), kTokens), want), kTolerance);
  convert(path("run"), path("back"), "hf");
  EXPECT_LT(distance(plain_logits(path("back"), kTokens), want), kTolerance);
}

/// The larger models see pictures too: their text has a part of config.json and a prefix.
TEST_F(GemmaMembers, TheTextOfAModelThatSeesPictures) {
  const test::Logits want = plain_logits(path("hf"), kTokens);
  const std::string text = read_file(path("hf") + "/config.json");
  for (const std::string before : {"language_model.model.", "model.language_model."}) {
    SCOPED_TRACE(before);
    std::filesystem::remove_all(path("seeing"));
    std::filesystem::copy(path("hf"), path("seeing"));
    const Json whole = Json::object({{"model_type", "gemma3"},
                                     {"text_config", Json::parse(text, "config.json")},
                                     {"vision_config", Json::object()}});
    write_file_atomically(path("seeing") + "/config.json", whole.dump());
    test::change_tensors(path("seeing"), [&](TensorFile& file) {
      for (auto& tensor : file.tensors) tensor.name.replace(0, std::size("model.") - 1, before);
      file.tensors.push_back(file.tensors.back());
      file.tensors.back().name = before[0] == 'm' ? "model.vision_tower.post_layernorm.weight"
                                                  : "multi_modal_projector.mm_soft_emb_norm.weight";
    });
    std::filesystem::remove_all(path("run"));
    convert(path("seeing"), path("run"), "checkpoint");
    EXPECT_LT(distance(test::compute_logits(path("run"), kTokens), want), kTolerance);
  }
}

/// The small ones have a tokenizer with one special token more than rows.
TEST_F(GemmaMembers, SpecialTokensWithoutRowsAreLeftOut) {
  const test::Logits want = plain_logits(path("hf"), kTokens);
  add_special({"<image_soft_token>"});
  imported();
  EXPECT_LT(distance(test::compute_logits(path("run"), kTokens), want), kTolerance);
  EXPECT_EQ(
      checkpoint::CheckpointReader(path("run")).manifest().model.at("vocabulary").as_integer(),
      300);
}

TEST_F(GemmaMembers, TheTokensThatBeginAndFillUpAreNamed) {
  add_special({"<pad>", "<bos>"});
  set({{"vocab_size", 302}});
  test::change_tensors(path("hf"), [](TensorFile& file) {
    TensorFile::Tensor& rows = file.at("model.embed_tokens.weight");
    rows.dims[0] = 302;
    rows.data.resize(rows.data.size() / 300 * 302);
  });
  imported();
  convert(path("run"), path("back"), "hf");
  const Json config = Json::parse(read_file(path("back") + "/config.json"), "config.json");
  EXPECT_EQ(config.at("pad_token_id").as_integer(), 300);
  EXPECT_EQ(config.at("bos_token_id").as_integer(), 301);
  EXPECT_EQ(read_file(path("back") + "/tokenizer.json"), read_file(path("hf") + "/tokenizer.json"));
}

/// Whether it is there, null, or another number.
TEST_F(GemmaMembers, TheCapOfGemma3sLogits) {
  EXPECT_EQ(imported().logit_cap, 0.0);
  set_config(path("hf"), "final_logit_softcapping", 2.5);
  EXPECT_EQ(imported().logit_cap, 2.5);
  EXPECT_LT(distance(test::compute_logits(path("run"), kTokens), plain_logits(path("hf"), kTokens)),
            kTolerance);
  convert(path("run"), path("back"), "hf");
  const Json config = Json::parse(read_file(path("back") + "/config.json"), "config.json");
  EXPECT_EQ(config.at("final_logit_softcapping").as_number(), 2.5);
}

TEST_F(GemmaMembers, CapsOfGemma2) {
  std::filesystem::remove_all(path("hf"));
  make_folder("gemma2", path("hf"));
  const auto caps = [&] {
    const ShapeOptions shape = imported();
    return std::pair(shape.score_cap, shape.logit_cap);
  };
  EXPECT_EQ(caps(), std::pair(1.5, 2.5));
  set_config(path("hf"), "attn_logit_softcapping", Json());
  EXPECT_EQ(caps(), std::pair(0.0, 2.5)) << "null";
  EXPECT_LT(distance(test::compute_logits(path("run"), kTokens), plain_logits(path("hf"), kTokens)),
            kTolerance);
  set({{"attn_logit_softcapping", Json()},  // set drops what is null
       {"final_logit_softcapping", Json()},
       {"layer_types", Json()},
       {"rope_theta", Json()},
       {"rope_local_base_freq", 7.0}});  // which Gemma 2 does not read
  EXPECT_EQ(caps(), std::pair(50.0, 30.0)) << "absent";
  const ShapeOptions shape = imported();
  EXPECT_EQ(shape.window_pattern, 2);
  EXPECT_EQ(shape.rope.theta, 1e4);
  EXPECT_EQ(shape.rope.local_theta, 1e4);
}

/// What transformers takes for members that are not there.
TEST_F(GemmaMembers, AbsentOnesAreGemmas) {
  set({{"rope_theta", Json()},
       {"rope_local_base_freq", Json()},
       {"rope_scaling", Json()},
       {"sliding_window", Json()},
       {"query_pre_attn_scalar", Json()},
       {"tie_word_embeddings", Json()}});
  const ShapeOptions shape = imported();
  EXPECT_EQ(shape.rope.theta, 1e6);
  EXPECT_EQ(shape.rope.local_theta, 1e4);
  EXPECT_EQ(shape.rope.factor, 1.0);
  EXPECT_EQ(shape.window, 4096);
  EXPECT_EQ(shape.query_scalar, 256.0);
  EXPECT_TRUE(shape.tied_head);
}

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

TEST(LinearStretching, GoesThereAndBackForEveryFamilyWithRope) {
  for (const char* family : {"smollm", "mistral", "qwen3", "olmo2"}) {
    SCOPED_TRACE(family);
    const test::TemporaryFolder folder;
    const std::string hf = folder.path() + "/hf", run = folder.path() + "/run";
    make_folder(family, hf);
    const Json scaling = Json::object({{"rope_type", "linear"}, {"factor", 4.0}});
    set_config(hf, "rope_scaling", scaling);
    convert(hf, run, "checkpoint");
    EXPECT_LT(distance(test::compute_logits(run, kTokens), plain_logits(hf, kTokens)), kTolerance);
    convert(run, folder.path() + "/back", "hf");
    const Json config = Json::parse(read_file(folder.path() + "/back/config.json"), "config.json");
    EXPECT_EQ(config.at("rope_scaling").dump(), scaling.dump());
  }
}

TEST(FamilyMembers, ThatChangeTheModelAreRefused) {
  const std::tuple<const char*, const char*, Json> wrong[] = {
      {"qwen2", "use_sliding_window", true},
      {"qwen3", "use_sliding_window", true},
      {"qwen3", "attention_bias", true},
      {"olmo2", "attention_bias", true},
      {"mistral", "sliding_window", 0},
      {"mistral", "head_dim", 7},
      {"gemma3", "attn_logit_softcapping", 50.0},
      {"gemma3", "final_logit_softcapping", -30.0},
      {"gemma2", "attn_logit_softcapping", 0},
      {"gemma2", "final_logit_softcapping", "none"},
      {"gemma2", "use_bidirectional_attention", true},
      {"gemma3", "use_bidirectional_attention", true},
      {"gemma3", "attention_bias", true},
      {"gemma3", "sliding_window", Json()},
      {"gemma3", "query_pre_attn_scalar", 0},
      {"gemma3", "layer_types", 3}};
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
