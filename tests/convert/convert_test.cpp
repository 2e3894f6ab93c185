// Checkpoints, single files and back: no bit is lost, training goes on, and what does not fit is
// refused.
#include "strait/convert/convert.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>

#include "strait/base/errors.h"
#include "strait/checkpoint/checkpoint.h"
#include "strait/layout/layout.h"
#include "tests/convert/stored_model.h"
#include "tests/layout/split_models.h"

namespace strait {
namespace {

namespace fs = std::filesystem;
using convert::convert;
using test::kFixture;
using test::small_run;
using test::TemporaryFolder;
using test::TensorFile;
using test::train_small;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Convert : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  strait::Run run(int64_t steps, std::vector<std::string> sets = {}) const {
    sets.insert(sets.begin(), {"train.steps=" + std::to_string(steps), "optimizer.decay_steps=8",
                               "checkpoint.resume=auto", "output.run_dir=unused"});
    return small_run(folder_.path(), sets);
  }
  std::string refusal(const std::string& from, const std::string& to, const std::string& form) {
    const bool there = fs::exists(to);
    try {
      convert(from, to, form);
    } catch (const UserError& error) {
      EXPECT_EQ(fs::exists(to), there);
      return error.what();
    }
    ADD_FAILURE() << from << " -> " << to << " was accepted";
    return "";
  }
  TemporaryFolder folder_;
};

TEST_F(Convert, ARunGoesOnBitForBitFromASingleFile) {
  for (const char* kind : {"adamw", "sgd"}) {
    const std::string optimizer = std::string("optimizer.kind=") + kind, name = kind;
    const std::string hash =
        train_small(run(8, {optimizer}), 2, path(name + "-whole")).parameter_hash;
    const std::string half = train_small(run(4, {optimizer}), 2, path(name)).parameter_hash;
    const Json there = convert(path(name), path(name + ".safetensors"), "");
    EXPECT_EQ(there.at("from_form").as_string(), "checkpoint");
    EXPECT_EQ(there.at("to_form").as_string(), "safetensors");
    EXPECT_EQ(there.at("parameter_hash").as_string(), half);
    EXPECT_EQ(there.at("step").as_integer(), 4);
    const Json back = convert(path(name + ".safetensors"), path(name + "-again"), "");
    EXPECT_EQ(back.at("to_form").as_string(), "checkpoint");
    EXPECT_EQ(back.at("parameter_hash").as_string(), half);
    const train::Outcome outcome = train_small(run(8, {optimizer}), 2, path(name + "-again"));
    EXPECT_EQ(outcome.first_step, 4);
    EXPECT_EQ(outcome.parameter_hash, hash) << kind;
  }
}

// Residuals of error feedback go through every form, each with its sender.
TEST_F(Convert, ErrorFeedbackGoesOnBitForBit) {
  const std::vector<std::string> sets = {"placement.codecs.gradients=int4/64+ef",
                                         "train.precision=fp32"};
  const std::string hash = train_small(run(8, sets), 2, path("whole")).parameter_hash;
  train_small(run(4, sets), 2, path("half"));
  convert(path("half"), path("half.safetensors"), "");
  convert(path("half.safetensors"), path("again"), "");
  convert(path("half"), path("one"), "checkpoint");
  convert(path("half.safetensors"), path("hf"), "hf");
  for (const char* name : {"again", "one"})
    EXPECT_EQ(train_small(run(8, sets), 2, path(name)).parameter_hash, hash) << name;
}

// What a killed conversion has left blocks no later one, and a failed one leaves nothing.
TEST_F(Convert, ACheckpointIsThereWholeOrNotAtAll) {
  train_small(run(2), 1, path("run"));
  fs::create_directories(path(".to.partial") + "/checkpoints/.step-00000002.partial");
  convert(path("run"), path("to"), "checkpoint");
  EXPECT_FALSE(fs::exists(path(".to.partial")));
  EXPECT_EQ(train_small(run(3), 1, path("to")).first_step, 2);
  fs::create_directories(path("closed"));
  std::ofstream(path("closed") + "/.again.partial") << "no folder";
  EXPECT_THROW(convert(path("run"), path("closed") + "/again", "checkpoint"), Error);
  EXPECT_FALSE(fs::exists(path("closed") + "/again"));
}

// Local weights and moments of every replica, the outer momentum, and what is under way.
TEST_F(Convert, ReplicasGoOnBitForBit) {
  for (const char* delay : {"0", "2"}) {
    const std::vector<std::string> sets = {
        "sync.policy=diloco", "sync.replica=1", "sync.rounds.period_steps=3",
        std::string("sync.rounds.delay_steps=") + delay, "checkpoint.every_steps=4"};
    SCOPED_TRACE(delay);
    const std::string of = std::string("delay-") + delay + "-";
    const std::string hash = train_small(run(9, sets), 2, path(of + "whole")).parameter_hash;
    const std::string half = path(of + "whole") + "/checkpoints/step-00000004";
    convert(half, path(of + "half.safetensors"), "");
    convert(path(of + "half.safetensors"), path(of + "again"), "");
    convert(half, path(of + "one"), "checkpoint");
    for (const char* name : {"again", "one"})
      EXPECT_EQ(train_small(run(9, sets), 2, path(of + name)).parameter_hash, hash) << name;
  }
}

/// The checkpoint of one rank again, as four ranks write it that split matrices over x and y.
std::string split_checkpoint(const std::string& from, const std::string& to) {
  const checkpoint::CheckpointReader reader(from);
  const Run run = parse_run(reader.read_text("run.toml"), "run.toml");
  const auto tokenizer = parse_tokenizer(reader.read_text("tokenizer.json"), "tokenizer.json");
  ModelShape shape = model_shape(run.model, tokenizer->vocabulary_size());
  split_parameters(shape);
  MeshOptions mesh;
  mesh.axes = {2, 2, 1, 1, 1, 1};
  const Layout layout(shape, Mesh(mesh, 4));
  const std::string folder = checkpoint::begin_save(to, reader.manifest().step);
  checkpoint::Manifest manifest = reader.manifest();
  manifest.shards.clear();
  manifest.files.clear();
  for (int64_t rank = 0; rank < 4; ++rank) {
    std::vector<std::vector<std::byte>> memory;
    std::vector<checkpoint::ShardView> views;
    for (const checkpoint::ShardRecord& whole : reader.manifest().shards) {
      std::vector<std::byte> bytes(static_cast<size_t>(whole.range.elements() * 8));
      reader.load(whole.range, bytes);
      if (whole.range.unit.empty()) {  // values of the whole run
        if (rank > 0) continue;
        memory.push_back(std::move(bytes));
        views.push_back({whole.range, memory.back().data()});
        continue;
      }
      size_t unit = 0;
      while (shape.units[unit].name != whole.range.unit) ++unit;
      const auto id = static_cast<int64_t>(unit);
      for (const LocalPiece& piece :
           layout.written_pieces(id, rank, {0, layout.local_elements(id)})) {
        memory.emplace_back(static_cast<size_t>(piece.local.size() * 8));
        pack(piece.runs, 8, bytes, memory.back());
        views.push_back({with_runs(whole.range, piece.runs), memory.back().data()});
      }
    }
    manifest.add(checkpoint::write_rank_file(folder, rank, views));
  }
  for (const char* text : {"run.toml", "tokenizer.json"})
    manifest.files.push_back(checkpoint::write_text(folder, text, reader.read_text(text)));
  return checkpoint::publish(folder, manifest);
}

TEST_F(Convert, SplitMatricesAreConvertedAsWholeOnes) {
  train_small(run(2, {"model.shape.ffn_width=36", "model.shape.vocabulary=24"}), 1, path("whole"));
  const std::string split = split_checkpoint(path("whole"), path("split"));
  EXPECT_NE(read_file(split + "/manifest.json").find("\"runs\""), std::string::npos);
  for (const char* form : {"safetensors", "hf"}) {
    const std::string ending = form == std::string("hf") ? "-hf" : ".safetensors";
    const Json want = convert(path("whole"), path("a" + ending), form);
    const Json got = convert(path("split"), path("b" + ending), form);
    EXPECT_EQ(got.at("parameter_hash").as_string(), want.at("parameter_hash").as_string());
    const std::string tensors = form == std::string("hf") ? "/model.safetensors" : "";
    const TensorFile a(path("a" + ending) + tensors), b(path("b" + ending) + tensors);
    ASSERT_EQ(a.tensors.size(), b.tensors.size());
    for (size_t i = 0; i < a.tensors.size(); ++i)
      EXPECT_EQ(a.tensors[i].data, b.tensors[i].data) << a.tensors[i].name;
  }
}

TEST_F(Convert, ManyRanksBecomeOneFileOfARank) {
  train_small(run(3, {"placement.preset=zero3"}), 4, path("run"));
  convert(path("run"), path("one"), "checkpoint");
  const checkpoint::CheckpointReader before(path("run")), after(path("one"));
  EXPECT_EQ(after.manifest().ranks, 1);
  EXPECT_EQ(after.manifest().files.size(), 3u);
  EXPECT_EQ(after.manifest().sequences_consumed, before.manifest().sequences_consumed);
  EXPECT_EQ(stored_parameter_hash(after), stored_parameter_hash(before));
  EXPECT_EQ(after.manifest().parameter_hash, stored_parameter_hash(after));
}

TEST_F(Convert, TheSingleFileHoldsParametersByName) {
  train_small(run(2), 2, path("run"));
  convert(path("run"), path("model.safetensors"), "safetensors");
  TensorFile file(path("model.safetensors"));
  const ModelShape shape = gpt2_shape(run(2).model.shape, 21);
  EXPECT_EQ(file.at("blocks.1.mlp.up.weight").dims, (std::vector<int64_t>{37, 20}));
  EXPECT_EQ(file.at("first_moment/blocks.1.mlp.up.weight").dims, (std::vector<int64_t>{37, 20}));
  EXPECT_EQ(file.at("second_moment/head.norm.bias").dims, (std::vector<int64_t>{20}));
  size_t parameters = 0;
  for (const UnitShape& unit : shape.units) parameters += unit.parameters.size();
  EXPECT_EQ(file.tensors.size(), 3 * parameters + 1) << "and the counters of the run";
}

TEST_F(Convert, AnImportedModelIsTrainedAndWordsAreSampledFromIt) {
  convert(kFixture, path("gpt2"), "");
  const strait::Run imported =
      load_run(path("gpt2") + "/run.toml",
               {"data.path=" + test::write_text(folder_.path(), test::small_text(500)),
                "train.steps=12", "train.global_batch_size=4", "optimizer.warmup_steps=0",
                "optimizer.learning_rate=0.01", "evaluation.every_steps=0"});
  EXPECT_EQ(imported.checkpoint.resume, "auto");
  EXPECT_EQ(imported.output.run_dir, path("gpt2"));
  const train::Outcome outcome = train_small(imported, 2, path("gpt2"));
  EXPECT_EQ(outcome.first_step, 0);
  EXPECT_EQ(outcome.losses.size(), 12u);
  EXPECT_LT(outcome.losses.back(), outcome.losses.front());
  EXPECT_EQ(checkpoint::complete_checkpoints(path("gpt2")).size(), 2u);
}

TEST_F(Convert, ASlashBehindTheTargetChangesNothing) {
  for (const char* form : {"checkpoint", "hf"}) {
    convert(kFixture, path(form) + "/", form);
    EXPECT_TRUE(convert::holds_model(path(form))) << form;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 2);
}

TEST_F(Convert, AnImportedModelHasTheNameOfItsFolderAsARunMay) {
  test::copy_fixture(folder_.path(), "one", kFixture);
  const auto name_of = [&](const std::string& from) {
    const std::string to = path("run");
    convert(from, to, "checkpoint");
    const strait::Run imported = load_run(to + "/run.toml");
    fs::remove_all(to);
    EXPECT_NO_THROW(validate_run(imported, 1)) << from;
    return imported.name;
  };
  const auto renamed = [&](const std::string& name) {
    fs::rename(path("one"), path(name));
    const std::string found = name_of(path(name));
    fs::rename(path(name), path("one"));
    return found;
  };
  EXPECT_EQ(renamed("gpt2.small"), "gpt2.small");
  EXPECT_EQ(renamed("my model (v2)"), "my-model--v2-");
  EXPECT_EQ(renamed(".cache"), "-cache");
  EXPECT_EQ(renamed(std::string(120, 'm')), std::string(100, 'm'));
  EXPECT_EQ(name_of(path("one") + "/"), "one");
  const fs::path before = fs::current_path();
  fs::current_path(path("one"));
  EXPECT_EQ(name_of("."), "one");
  fs::current_path(before);
}

TEST_F(Convert, FormsAndPathsThatDoNotFitAreRefused) {
  EXPECT_THAT(refusal(path("none"), path("x"), ""), HasSubstr("not there"));
  EXPECT_THAT(refusal(folder_.path(), path("x"), ""), HasSubstr("neither a checkpoint"));
  EXPECT_THAT(refusal(kFixture, path("x"), "hugging"), AllOf(HasSubstr("--to"), HasSubstr("hf")));
  EXPECT_THAT(refusal(kFixture, path("x.safetensors"), "hf"), HasSubstr("ends with .safetensors"));
  EXPECT_THAT(refusal(kFixture, path("x"), "safetensors"), HasSubstr("does not end"));
  fs::create_directories(path("there"));
  EXPECT_THAT(refusal(kFixture, path("there"), ""), HasSubstr("already there"));
  EXPECT_THAT(refusal(kFixture + "/model.safetensors", path("x"), ""),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("config.json")));
}

/// As it was before manifests had a hash of the content.
void make_old(TensorFile& file) {
  for (auto& [key, value] : file.metadata)
    if (key == "manifest") {
      checkpoint::Manifest manifest = checkpoint::parse_manifest(value, "manifest");
      Json others = Json::object();
      for (const auto& [name, member] : manifest.extra.as_object())
        if (name != "content_hash") others[name] = member;
      EXPECT_EQ(others.size() + 1, manifest.extra.size());
      manifest.extra = others;
      value = checkpoint::manifest_text(manifest);
    }
}

TEST_F(Convert, ADamagedSingleFileIsRefused) {
  convert(kFixture, path("one.safetensors"), "");
  const auto damaged = [&](const std::function<void(TensorFile&)>& change) {
    TensorFile file(path("one.safetensors"));
    make_old(file);  // which says more than that the content is another
    change(file);
    file.write(path("damaged.safetensors"));
    const std::string message = refusal(path("damaged.safetensors"), path("x"), "");
    EXPECT_THAT(message, HasSubstr("damaged.safetensors"));
    return message;
  };
  const std::string name = "blocks.1.mlp.up.weight";
  EXPECT_THAT(damaged([&](TensorFile& file) { file.at(name).data[7] ^= std::byte{1}; }),
              HasSubstr("corrupt"));
  EXPECT_THAT(damaged([&](TensorFile& file) {
                file.at(name).dims = {24, 80};
              }),
              AllOf(HasSubstr(name), HasSubstr("[80, 24]")));
  EXPECT_THAT(damaged([&](TensorFile& file) { file.at(name).name = "blocks.1.mlp.upper.weight"; }),
              HasSubstr(name));
  EXPECT_THAT(damaged([&](TensorFile& file) {
                file.tensors.push_back({"more", Dtype::kByte, {1}, std::vector<std::byte>(1)});
              }),
              HasSubstr("more"));
  EXPECT_THAT(damaged([&](TensorFile& file) { file.metadata.pop_back(); }), HasSubstr("metadata"));
  EXPECT_THAT(damaged([&](TensorFile& file) {
                for (auto& [key, value] : file.metadata)
                  if (key == "manifest") value[value.size() / 2] ^= 1;
              }),
              HasSubstr("manifest"));
}

/// Bytes of a file in which a flipped bit must be found: all but the padding of its header.
std::vector<size_t> some_places(const std::string& bytes) {
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const size_t text = bytes.find_last_not_of(' ', 7 + header) + 1;
  std::vector<size_t> places;
  for (size_t i = 0; i < 400; ++i) {
    places.push_back(i * text / 400);
    places.push_back(8 + header + i * (bytes.size() - 8 - header) / 400);
  }
  return places;
}

// The weights, what the optimizer and error feedback keep, run file and tokenizer.
TEST_F(Convert, AFlippedBitAnywhereInASingleFileIsFound) {
  train_small(run(2, {"placement.codecs.gradients=int4/64+ef", "train.precision=fp32"}), 2,
              path("run"));
  convert(path("run"), path("one.safetensors"), "");
  const std::string whole = read_file(path("one.safetensors")), to = path("damaged.safetensors");
  std::map<std::string, size_t> of_tokenizer = {{"\\\"char\\\"", 2}, {"learning_rate = ", 16}};
  std::vector<size_t> places = some_places(whole);
  for (const auto& [text, behind] : of_tokenizer) {
    ASSERT_NE(whole.find(text), std::string::npos) << text;
    places.push_back(whole.find(text) + behind);
  }
  for (const size_t place : places) {
    std::string changed = whole;
    changed[place] = static_cast<char>(changed[place] ^ 1);
    write_file_atomically(to, changed);
    EXPECT_THAT(refusal(to, path("x"), ""), HasSubstr("damaged.safetensors")) << place;
  }
  for (const char* form : {"hf", "checkpoint"}) convert(path("one.safetensors"), path(form), form);
}

TEST_F(Convert, ASingleFileWithoutAHashOfItsContentIsRead) {
  convert(kFixture, path("one.safetensors"), "");
  TensorFile file(path("one.safetensors"));
  make_old(file);
  file.write(path("old.safetensors"));
  EXPECT_EQ(convert(path("old.safetensors"), path("old"), "").at("parameter_hash").as_string(),
            convert(path("one.safetensors"), path("new"), "").at("parameter_hash").as_string());
}

/// What another process that writes to the same place holds.
class Busy {
 public:
  explicit Busy(const std::string& path) : descriptor_(::open(path.c_str(), O_RDONLY)) {
    EXPECT_EQ(::flock(descriptor_, LOCK_EX | LOCK_NB), 0) << path;
  }
  ~Busy() { ::close(descriptor_); }

 private:
  const int descriptor_;
};

TEST_F(Convert, TwoIntoOneTargetAreNotMixed) {
  const std::string file = path("m.safetensors"), folder = path("hf");
  const std::string half_file = file + ".partial", half_folder = path(".hf.partial");
  write_file_atomically(half_file, "half");
  fs::create_directories(half_folder);
  write_file_atomically(half_folder + "/config.json", "half");
  {
    const Busy one(half_file), other(half_folder);
    EXPECT_THROW(convert(kFixture, file, "safetensors"), UserError);
    EXPECT_THROW(convert(kFixture, folder, "hf"), UserError);
    EXPECT_EQ(read_file(half_file), "half");
    EXPECT_EQ(read_file(half_folder + "/config.json"), "half");
  }
  // Nobody holds them: what a killed process left is written over.
  convert(kFixture, file, "safetensors");
  convert(kFixture, folder, "hf");
  EXPECT_FALSE(fs::exists(half_file));
  EXPECT_FALSE(fs::exists(half_folder));
}

TEST_F(Convert, ADestinationThatCannotBeWrittenLeavesNothing) {
  std::ofstream(path("file")) << "x";
  for (const char* to : {"/folder", "/model.safetensors"})
    for (const char* form : {"checkpoint", "hf", "safetensors"}) {
      if (std::string(to).ends_with("rs") != (std::string(form) == "safetensors")) continue;
      EXPECT_THROW(convert(kFixture, path("file") + to, form), InputOutputError) << to << form;
    }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1);
}

}  // namespace
}  // namespace strait
