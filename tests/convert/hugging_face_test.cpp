// GPT-2 to and from Hugging Face's form, held against an implementation that shares no line with
// ours.
#include "strait/convert/hugging_face.h"

#include "strait/config/print.h"
#include "tests/convert/hugging_face_fixture.h"
#include "tests/paths.h"

namespace strait {
namespace {

namespace fs = std::filesystem;
using convert::convert;
using test::change_tensors;
using test::compute_logits;
using test::kFixture;
using test::kLogitTolerance;
using test::set_config;
using test::TensorFile;
using ::testing::AllOf;
using ::testing::HasSubstr;

class HuggingFace : public test::HuggingFaceFixture {
 protected:
  HuggingFace() : HuggingFaceFixture(kFixture) {}
};

TEST_F(HuggingFace, LogitsEqualThoseOfTheIndependentImplementation) {
  ASSERT_EQ(expected_.rows.size(), 16u);
  ASSERT_EQ(expected_.rows.front().size(), 300u);
  const double found = distance(imported(kFixture, "run"), expected_);
  EXPECT_LT(found, kLogitTolerance);
  RecordProperty("largest_difference", std::to_string(found));
}

TEST_F(HuggingFace, NamesWithoutPrefixMasksAndARepeatedHeadAreTheSameModel) {
  const std::string hf = copy();
  change_tensors(hf, [](TensorFile& file) {
    for (auto& tensor : file.tensors) tensor.name = tensor.name.substr(12);
    file.tensors.push_back(
        {"h.0.attn.bias", Dtype::kByte, {1, 1, 2, 2}, std::vector<std::byte>(4)});
    file.tensors.push_back(
        {"h.0.attn.masked_bias", Dtype::kFloat32, {}, std::vector<std::byte>(4)});
    TensorFile::Tensor head = file.at("wte.weight");
    head.name = "lm_head.weight";
    file.tensors.push_back(head);
  });
  EXPECT_LT(distance(imported(hf, "run"), expected_), kLogitTolerance);
}

TEST_F(HuggingFace, ShardsWithAnIndexAreTheSameModel) {
  const std::string hf = copy();
  const TensorFile whole(hf + "/model.safetensors");
  fs::remove(hf + "/model.safetensors");
  Json map = Json::object();
  for (int shard = 0; shard < 3; ++shard) {
    TensorFile part = whole;
    part.tensors.clear();
    const std::string name = "model-0000" + std::to_string(shard + 1) + "-of-00003.safetensors";
    for (size_t i = static_cast<size_t>(shard); i < whole.tensors.size(); i += 3) {
      part.tensors.push_back(whole.tensors[i]);
      map[whole.tensors[i].name] = name;
    }
    part.write(hf + "/" + name);
  }
  const auto write_index = [&](const Json& listed) {
    write_file_atomically(
        hf + "/model.safetensors.index.json",
        Json::object({{"metadata", Json::object()}, {"weight_map", listed}}).dump());
  };
  write_index(map);
  EXPECT_LT(distance(imported(hf, "run"), expected_), kLogitTolerance);

  Json more = map;
  more["transformer.h.7.ln_1.bias"] = "model-00002-of-00003.safetensors";
  write_index(more);
  EXPECT_THAT(refusal(hf), AllOf(HasSubstr("model-00002"), HasSubstr("h.7.ln_1.bias")));
  more = map;
  more["transformer.wte.weight"] = "../elsewhere.safetensors";
  write_index(more);
  EXPECT_THAT(refusal(hf), HasSubstr("../elsewhere.safetensors"));
  write_index(map);
  fs::remove(hf + "/model-00003-of-00003.safetensors");
  EXPECT_THAT(refusal(hf), HasSubstr("model-00003-of-00003.safetensors"));
}

TEST_F(HuggingFace, MalformedFilesAreNamed) {
  const std::string hf = copy(), index = hf + "/model.safetensors.index.json";
  const auto index_of = [&](const Json& json) {
    write_file_atomically(index, json.dump());
    const std::string message = refusal(hf);
    fs::remove(index);
    EXPECT_THAT(message, HasSubstr(index));
    return message;
  };
  EXPECT_THAT(index_of(Json::object()), HasSubstr("\"weight_map\""));
  EXPECT_THAT(index_of(Json::array()), HasSubstr("\"weight_map\""));
  for (const Json& map : {Json::array(), Json::object(), Json(5)})
    EXPECT_THAT(index_of(Json::object({{"weight_map", map}})), HasSubstr("weight_map is "));
  EXPECT_THAT(index_of(Json::object({{"weight_map", Json::object({{"wte.weight", 5}})}})),
              HasSubstr("weight_map.wte.weight is 5"));
  const std::string config = read_file(hf + "/config.json");
  write_file_atomically(hf + "/config.json", "[]");
  EXPECT_THAT(refusal(hf), AllOf(HasSubstr("config.json"), HasSubstr("no JSON object")));
  write_file_atomically(hf + "/config.json", config);
  set_config(hf, "model_type", nullptr);
  EXPECT_THAT(refusal(hf), AllOf(HasSubstr("model_type is null"), HasSubstr("gpt2")));
  write_file_atomically(hf + "/config.json", config);
  const std::string path = hf + "/tokenizer.json";
  Json tokenizer = Json::parse(read_file(path), path);
  for (const Json& entry :
       {Json::object({{"content", "x"}, {"special", true}}), Json(5), Json::object()}) {
    tokenizer["added_tokens"] = Json::Array{entry};
    write_file_atomically(path, tokenizer.dump());
    EXPECT_THAT(refusal(hf), HasSubstr(path));
  }
}

TEST_F(HuggingFace, WeightsWithoutAConfigAreNoData) {
  const std::string hf = copy();
  fs::remove(hf + "/config.json");
  EXPECT_TRUE(convert::holds_model(hf));
  EXPECT_THAT(refusal(hf), AllOf(HasSubstr(hf), HasSubstr("no config.json")));
}

TEST_F(HuggingFace, AHeadOfItsOwnIsUsed) {
  const std::string hf = copy();
  set_config(hf, "tie_word_embeddings", false);
  change_tensors(hf, [](TensorFile& file) {  // twice the embedding: twice the logits
    TensorFile::Tensor head = file.at("transformer.wte.weight");
    head.name = "lm_head.weight";
    auto* values = reinterpret_cast<float*>(head.data.data());
    for (size_t i = 0; i < head.data.size() / 4; ++i) values[i] *= 2;
    file.tensors.push_back(head);
  });
  test::Logits twice = expected_;
  for (auto& row : twice.rows)
    for (double& value : row) value *= 2;
  EXPECT_LT(distance(imported(hf, "run"), twice), 2 * kLogitTolerance);
  set_config(hf, "tie_word_embeddings", true);
  EXPECT_THAT(refusal(hf), AllOf(HasSubstr("lm_head.weight differs"), HasSubstr("tie_word")));
}

TEST_F(HuggingFace, HalfPrecisionIsWidenedExactly) {
  // Values that both 16-bit types hold, subnormal and infinite ones of fp16 among them.
  const std::pair<uint16_t, float> halves[] = {{0x3c00, 1.0f},     {0xc000, -2.0f},
                                               {0x0001, 0x1p-24f}, {0x83ff, -0x1.ff8p-15f},
                                               {0x7bff, 65504.0f}, {0x3555, 0x1.554p-2f}};
  const std::pair<uint16_t, float> brains[] = {{0x3f80, 1.0f},       {0xc000, -2.0f},
                                               {0x0001, 0x1p-133f},  {0x7f7f, 0x1.fep127f},
                                               {0x3eab, 0x1.56p-2f}, {0xbf80, -1.0f}};
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
    const auto& values = dtype == Dtype::kFloat16 ? halves : brains;
    const std::string name = dtype_name(dtype);
    const std::string hf = copy(name);
    change_tensors(hf, [&](TensorFile& file) {
      TensorFile::Tensor& norm = file.at("transformer.ln_f.bias");
      norm.dtype = dtype;
      norm.data.assign(24 * 2, std::byte{0});
      for (size_t i = 0; i < 6; ++i) std::memcpy(norm.data.data() + 2 * i, &values[i].first, 2);
    });
    convert(hf, path(name + "-run"), "checkpoint");
    convert(path(name + "-run"), path(name + "-back"), "hf");
    TensorFile back(path(name + "-back") + "/model.safetensors");
    const auto* floats =
        reinterpret_cast<const float*>(back.at("transformer.ln_f.bias").data.data());
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(floats[i], values[i].second) << name << i;
    EXPECT_EQ(floats[6], 0.0f);
  }
}

TEST_F(HuggingFace, ThereAndBackKeepsEveryBit) {
  convert(kFixture, path("run"), "");
  const Json done = convert(path("run"), path("back"), "");
  EXPECT_EQ(done.at("to_form").as_string(), "hf");
  TensorFile before(kFixture + "/model.safetensors"), after(path("back") + "/model.safetensors");
  ASSERT_EQ(before.tensors.size(), after.tensors.size());
  for (const auto& tensor : before.tensors) {
    EXPECT_EQ(after.at(tensor.name).dims, tensor.dims) << tensor.name;
    EXPECT_EQ(after.at(tensor.name).data, tensor.data) << tensor.name;
  }
  const Json want = Json::parse(read_file(kFixture + "/config.json"), "config.json");
  const Json got = Json::parse(read_file(path("back") + "/config.json"), "config.json");
  for (const auto& [key, value] : want.as_object())
    EXPECT_EQ(got.at(key).dump(), value.dump()) << key;
  const auto tokenizer = load_tokenizer(path("back") + "/tokenizer.json");
  EXPECT_EQ(tokenizer->encode("the other heat"),
            load_tokenizer(kFixture + "/tokenizer.json")->encode("the other heat"));
  EXPECT_LT(distance(imported(path("back"), "again"), expected_), kLogitTolerance);
}

TEST_F(HuggingFace, ATrainedModelWithoutBiasesGetsZeros) {
  for (const char* tied : {"true", "false"}) {
    const std::string run_dir = path(std::string("trained-") + tied);
    test::train_small(
        test::small_run(folder_.path(), {"train.steps=3", "model.shape.bias=false",
                                         std::string("model.shape.tied_head=") + tied}),
        3, run_dir);
    const std::string hf = run_dir + "-hf";
    const Json done = convert(run_dir, hf, "");
    EXPECT_THAT(done.at("notes").dump(), AllOf(HasSubstr("tensors of zeros"), HasSubstr("char")));
    const std::vector<int32_t> tokens = {1, 4, 2, 7, 3, 3, 9, 0};
    convert(hf, run_dir + "-again", "");
    // fp64: a sum with zero changes no bit.
    EXPECT_EQ(distance(compute_logits(run_dir + "-again", tokens), compute_logits(run_dir, tokens)),
              0)
        << tied;
  }
}

TEST_F(HuggingFace, AConfigWithoutAModelTypeIsReadByGpt2sSizesAlone) {
  const std::string hf = copy(), config = hf + "/config.json";
  const auto leave_out = [&](const std::string& key) {
    Json::Object members = Json::parse(read_file(config), config).as_object();
    std::erase_if(members, [&](const Json::Member& member) { return member.first == key; });
    write_file_atomically(config, Json::from_members(std::move(members)).dump());
  };
  leave_out("model_type");
  EXPECT_LT(distance(imported(hf, "run"), expected_), kLogitTolerance);
  EXPECT_THAT(convert(hf, path("told"), "").at("notes").dump(),
              HasSubstr("config.json has no model_type"));
  leave_out("n_embd");
  EXPECT_THAT(refusal(hf), AllOf(HasSubstr(config + ": model_type is missing"),
                                 HasSubstr("supported: \"gpt2\", \"llama\"")));
}

TEST_F(HuggingFace, WhatOurModelDoesNotComputeIsRefusedByName) {
  const std::pair<const char*, Json> wrong[] = {{"activation_function", "gelu"},
                                                {"activation_function", "relu"},
                                                {"layer_norm_epsilon", 0.0},
                                                {"model_type", "gptj"},
                                                {"scale_attn_weights", false},
                                                {"scale_attn_by_inverse_layer_idx", true},
                                                {"add_cross_attention", true},
                                                {"n_layer", "two"},
                                                {"resid_pdrop", 1.0},
                                                {"attn_pdrop", -0.5},
                                                {"n_embd", 0},
                                                {"n_head", 5},
                                                {"vocab_size", 301}};
  for (const auto& [key, value] : wrong) {
    const std::string hf = copy(std::string("wrong-") + key);
    set_config(hf, key, value);
    const std::string message = refusal(hf);
    EXPECT_THAT(message, HasSubstr(key));
    fs::remove_all(hf);
  }
  for (const char* same : {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}) {
    const std::string hf = copy(same);
    set_config(hf, "activation_function", same);
    EXPECT_LT(distance(imported(hf, std::string(same) + "-run"), expected_), kLogitTolerance);
  }
}

TEST_F(HuggingFace, WrongTensorsAndMissingFilesAreNamed) {
  const auto damaged = [&](const std::function<void(TensorFile&)>& change) {
    const std::string hf = copy();
    change_tensors(hf, change);
    const std::string message = refusal(hf);
    fs::remove_all(hf);
    return message;
  };
  const std::string name = "transformer.h.1.mlp.c_fc.weight";
  EXPECT_THAT(
      damaged([&](TensorFile& file) { std::swap(file.at(name).dims[0], file.at(name).dims[1]); }),
      AllOf(HasSubstr(name), HasSubstr("[80, 24]"), HasSubstr("[24, 80]")));
  EXPECT_THAT(damaged([&](TensorFile& file) { file.at(name).dtype = Dtype::kInt32; }),
              AllOf(HasSubstr(name), HasSubstr("i32")));
  EXPECT_THAT(damaged([&](TensorFile& file) { file.at(name).name += "s"; }),
              AllOf(HasSubstr("h.1.mlp.c_fc.weight"), HasSubstr("nearest")));
  EXPECT_THAT(damaged([&](TensorFile& file) {
                file.tensors.push_back(
                    {"transformer.h.2.ln_1.bias", Dtype::kFloat32, {1}, std::vector<std::byte>(4)});
              }),
              HasSubstr("h.2.ln_1.bias"));
  EXPECT_THAT(damaged([&](TensorFile& file) {
                TensorFile::Tensor twin = file.at(name);
                twin.name = name.substr(12);
                file.tensors.push_back(twin);
              }),
              HasSubstr("second time"));
  for (const char* missing : {"tokenizer.json", "model.safetensors"}) {
    const std::string hf = copy();
    fs::remove(hf + "/" + missing);
    EXPECT_THAT(refusal(hf), HasSubstr(missing));
    fs::remove_all(hf);
  }
  EXPECT_THAT(damaged([&](TensorFile& file) {
                const float nan = std::numeric_limits<float>::quiet_NaN();
                std::memcpy(file.at(name).data.data() + 8, &nan, sizeof(nan));
              }),
              AllOf(HasSubstr("blocks.1"), HasSubstr("is not finite")));
  const std::string hf = copy();
  fs::resize_file(hf + "/model.safetensors", 50000);
  EXPECT_THAT(refusal(hf), HasSubstr("model.safetensors"));
}

TEST_F(HuggingFace, AModelBeyondMemoryIsRefusedBeforeItIsAllocated) {
  const std::string hf = copy();
  set_config(hf, "n_inner", int64_t{10'000'000});
  set_config(hf, "n_layer", int64_t{1000});
  try {
    convert(hf, path("run"), "checkpoint");
    FAIL() << "nothing was refused";
  } catch (const NothingFits& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("needs 1960 GB"), HasSubstr("are there")));
  }
  EXPECT_FALSE(fs::exists(path("run")));
}

/// The independent implementation as a program; its exit code.
int peer(const std::string& arguments, const std::string& log) {
  const std::string command = "/usr/bin/python3 -B " +
                              test::in_source("bench/peers/gpt2_hugging_face.py ") + arguments +
                              " >" + log + " 2>&1";
  return WEXITSTATUS(std::system(command.c_str()));
}

TEST_F(HuggingFace, ExportsAreReadBackByTheIndependentImplementation) {
  if (std::system("/usr/bin/python3 -c 'import torch' >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "/usr/bin/python3 has no torch; tools/setup --peers installs it";
  const std::string log = path("log");
  const auto agrees = [&](const std::string& run_dir, double tolerance) {
    convert(run_dir, run_dir + "-hf", "hf");
    const std::string out = run_dir + ".logits";
    ASSERT_EQ(peer("logits " + run_dir + "-hf 1,4,2,7,3,3,9,0,5,8 " + out, log), 0)
        << read_file(log);
    const test::Logits theirs = test::read_logits(out);
    EXPECT_LT(distance(compute_logits(run_dir, theirs.tokens), theirs), tolerance) << run_dir;
  };
  convert(kFixture, path("imported"), "checkpoint");
  agrees(path("imported"), kLogitTolerance);
  int number = 0;
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{
           {"train.precision=fp32"},
           {"model.shape.bias=false"},
           {"model.shape.tied_head=false", "data.tokenizer=bpe:300"}}) {
    std::vector<std::string> all = {"train.steps=4"};
    all.insert(all.end(), sets.begin(), sets.end());
    const std::string run_dir = path("trained" + std::to_string(number++));
    test::train_small(test::small_run(folder_.path(), all), 2, run_dir);
    agrees(run_dir, kLogitTolerance);
  }
  // What it makes anew is what is committed.
  ASSERT_EQ(peer("make " + path("made"), log), 0) << read_file(log);
  EXPECT_LT(distance(test::read_logits(path("made") + "/expected.safetensors"), expected_), 1e-9);
}

}  // namespace
}  // namespace strait
