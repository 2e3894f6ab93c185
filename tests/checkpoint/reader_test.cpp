#include "strait/checkpoint/reader.h"

#include <gmock/gmock.h>

#include <fstream>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/files/hash.h"
#include "tests/checkpoint/example_run.h"

namespace strait::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

void overwrite(const std::string& path, std::string_view contents) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(contents.data(), static_cast<std::streamsize>(contents.size()));
}

TEST(Reader, AnyLayoutIntoAnyOther) {
  const TemporaryFolder run;
  for (int64_t saved = 1; saved <= 8; ++saved) {
    const std::string path = save_example(run.path(), saved, saved);
    for (int64_t loaded = 1; loaded <= 8; ++loaded) expect_content(path, saved, loaded);
  }
}

TEST(Reader, EveryRangeOfAUnit) {
  const TemporaryFolder run;
  const CheckpointReader reader(save_example(run.path(), 1, 5));
  for (int64_t begin = 0; begin <= 57; ++begin)
    for (int64_t end = begin; end <= 57; ++end) {
      const StateRange range{"blocks.0", kSecondMoment, begin, end, Dtype::kFloat64};
      const std::vector<std::byte> wanted = example_bytes(1, range);
      std::vector<std::byte> loaded(wanted.size());
      reader.load(range, loaded);
      ASSERT_EQ(loaded, wanted) << begin << " " << end;
    }
}

// Asked together, in any order, overlapping or not, from files that were checked or not.
TEST(Reader, ManyRangesAtATime) {
  const TemporaryFolder run;
  const std::string path = save_example(run.path(), 1, 4);
  const std::vector<std::vector<StateRange>> wanted = {
      {{"embedding", kMaster, 60, 103, Dtype::kFloat32},
       {"blocks.0", kSecondMoment, 3, 50, Dtype::kFloat64},
       {"embedding", kMaster, 0, 60, Dtype::kFloat32},
       {"head", kFirstMoment, 0, 1, Dtype::kFloat32}},
      {{"embedding", kMaster, 10, 90, Dtype::kFloat32},
       {"embedding", kMaster, 20, 30, Dtype::kFloat32}},
      {}};
  for (const auto& ranges : wanted) {
    const CheckpointReader reader(path);
    for (int round = 0; round < 2; ++round) {
      std::vector<std::vector<std::byte>> memory;
      std::vector<LoadRequest> requests;
      for (const StateRange& range : ranges) memory.emplace_back(example_bytes(1, range).size());
      for (size_t i = 0; i < ranges.size(); ++i) requests.push_back({ranges[i], memory[i]});
      reader.load(requests);
      for (size_t i = 0; i < ranges.size(); ++i)
        EXPECT_EQ(memory[i], example_bytes(1, ranges[i])) << i << " round " << round;
    }
  }
}

TEST(Reader, RanksMayShareOne) {
  const TemporaryFolder run;
  const CheckpointReader reader(save_example(run.path(), 1, 3));
  on_ranks(8, [&](int64_t rank) {
    for (const StateRange& range : example_ranges(rank, 8)) {
      std::vector<std::byte> loaded(example_bytes(1, range).size());
      reader.load(range, loaded);
      EXPECT_EQ(loaded, example_bytes(1, range));
    }
  });
}

TEST(Reader, WrongRequestsAreNamed) {
  const TemporaryFolder run;
  const std::string path = save_example(run.path(), 1, 2);
  const CheckpointReader reader(run.path());
  EXPECT_EQ(reader.path(), path);
  std::vector<std::byte> memory(4096);
  const auto says = [&](const StateRange& range) {
    const std::span bytes(
        memory.data(), static_cast<size_t>((range.end - range.begin) * dtype_bytes(range.dtype)));
    return message_of<UserError>([&] { reader.load(range, bytes); });
  };
  EXPECT_THAT(says({"blocks.1", kMaster, 0, 4, Dtype::kFloat32}),
              AllOf(HasSubstr(path), HasSubstr("blocks.1"), HasSubstr("nearest is blocks.0")));
  EXPECT_THAT(says({"blocks.0", kMomentum, 0, 4, Dtype::kFloat32}),
              AllOf(HasSubstr("no state momentum"), HasSubstr("nearest is")));
  EXPECT_THAT(says({"blocks.0", kMaster, 50, 58, Dtype::kFloat32}),
              AllOf(HasSubstr("[50, 58)"), HasSubstr("it has 57"), HasSubstr("example")));
  EXPECT_THAT(says({"blocks.0", kMaster, 0, 4, Dtype::kFloat64}),
              AllOf(HasSubstr("fp32"), HasSubstr("fp64")));
  EXPECT_THROW(
      reader.load({"blocks.0", kMaster, 0, 4, Dtype::kFloat32}, std::span(memory).first(15)),
      InternalError);
  EXPECT_THAT(message_of<UserError>([&] { reader.read_text("run.tom"); }),
              HasSubstr("nearest is run.toml"));
}

TEST(Reader, UncoveredRange) {
  const TemporaryFolder run;
  const std::string path = save_example(run.path(), 1, 3);
  Manifest manifest = read_manifest(path);
  std::erase_if(manifest.shards, [](const ShardRecord& shard) {
    return shard.range.unit == "embedding" && shard.range.state == kMaster &&
           shard.range.begin == 34;
  });
  overwrite(path + "/manifest.json", manifest_text(manifest));
  const CheckpointReader reader(path);
  std::vector<std::byte> memory(103 * 4);
  EXPECT_THAT(message_of<UserError>([&] {
                reader.load({"embedding", kMaster, 0, 103, Dtype::kFloat32}, memory);
              }),
              HasSubstr("no file holds element 34 of master of unit embedding"));
  EXPECT_NO_THROW(
      reader.load({"embedding", kMaster, 0, 34, Dtype::kFloat32}, std::span(memory).first(34 * 4)));
}

TEST(Reader, TextsAreVerified) {
  const TemporaryFolder run;
  const std::string path = save_example(run.path(), 1, 1);
  EXPECT_EQ(CheckpointReader(path).read_text("run.toml"), "version = 1\n");
  EXPECT_TRUE(CheckpointReader(path).has_file("tokenizer.json"));
  EXPECT_FALSE(CheckpointReader(path).has_file("manifest.json"));
  overwrite(path + "/run.toml", "version = 2\n");
  EXPECT_THAT(message_of<UserError>([&] { CheckpointReader(path).read_text("run.toml"); }),
              AllOf(HasSubstr("run.toml"), HasSubstr("corrupt")));
  overwrite(path + "/run.toml", "version =");
  EXPECT_THAT(message_of<UserError>([&] { CheckpointReader(path).read_text("run.toml"); }),
              HasSubstr("truncated"));
}

TEST(Reader, WhereAFileIsCorruptTheCheckpointBeforeIsNamed) {
  const TemporaryFolder run;
  save_example(run.path(), 1, 1);
  const std::string before = save_example(run.path(), 2, 1);
  const std::string path = save_example(run.path(), 3, 1);
  save_example(run.path(), 4, 1);
  overwrite(path + "/run.toml", "version = 2\n");
  EXPECT_THAT(message_of<UserError>([&] { CheckpointReader(path).read_text("run.toml"); }),
              AllOf(HasSubstr("corrupt"), HasSubstr("before it is " + before)));
  std::string rank = read_file(path + "/rank-00000.safetensors");
  rank.back() ^= 1;
  overwrite(path + "/rank-00000.safetensors", rank);
  EXPECT_THAT(message_of<UserError>([&] { CheckpointReader(path).verify_share(0, 1); }),
              HasSubstr("before it is " + before));
  EXPECT_THAT(message_of<UserError>([&] { expect_content(path, 3); }),
              HasSubstr("before it is " + before));
}

class DamagedRankFile : public ::testing::Test {
 protected:
  const TemporaryFolder run_;
  const std::string path_ = save_example(run_.path(), 1, 2);
  const std::string file_ = path_ + "/rank-00001.safetensors";
  const std::string whole_ = read_file(file_);
  const Manifest manifest_ = read_manifest(path_);

  std::string load_error() const {
    const CheckpointReader reader(path_);
    std::vector<std::byte> memory(4 * 4);
    try {
      reader.load({"blocks.0", kMaster, 50, 54, Dtype::kFloat32}, memory);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(DamagedRankFile, FlippedBitAtEveryByteIsFound) {
  for (size_t i = 0; i < whole_.size(); ++i) {
    std::string changed = whole_;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    overwrite(file_, changed);
    ASSERT_THAT(load_error(), HasSubstr("rank-00001.safetensors")) << i;
    ASSERT_THAT(message_of<UserError>([&] { verify_files(manifest_, path_, true); }),
                AllOf(HasSubstr("rank-00001.safetensors"), HasSubstr("corrupt")))
        << i;
  }
  EXPECT_NO_THROW(verify_files(manifest_, path_, false)) << "sizes alone are right";
  overwrite(file_, whole_);
  EXPECT_NO_THROW(verify_files(manifest_, path_, true));
}

TEST_F(DamagedRankFile, EveryTruncationIsFound) {
  for (size_t bytes = 0; bytes < whole_.size(); bytes += 7) {
    overwrite(file_, std::string_view(whole_).substr(0, bytes));
    ASSERT_THAT(load_error(), AllOf(HasSubstr("rank-00001.safetensors"), HasSubstr("truncated")))
        << bytes;
    ASSERT_THAT(message_of<UserError>([&] { verify_files(manifest_, path_, false); }),
                HasSubstr("truncated"));
  }
  overwrite(file_, whole_ + "x");
  EXPECT_THAT(load_error(), HasSubstr("changed"));
  fs::remove(file_);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("cannot open"), HasSubstr("rank-00001.safetensors")));
}

// Files of the same run that were exchanged: sizes may agree, hashes do not.
TEST_F(DamagedRankFile, FileOfAnotherStepIsFound) {
  const std::string other = save_example(run_.path(), 2, 2);
  overwrite(file_, read_file(other + "/rank-00001.safetensors"));
  EXPECT_THAT(load_error(), HasSubstr("corrupt"));
}

/// A rank file with another content, and a manifest that lists its new hash.
void replace_rank_file(const std::string& path, const std::vector<TensorView>& tensors) {
  const WrittenFile written = write_safetensors(path + "/rank-00001.safetensors", tensors);
  Manifest manifest = read_manifest(path);
  for (FileRecord& file : manifest.files)
    if (file.name == "rank-00001.safetensors") file = {file.name, written.bytes, written.hash};
  overwrite(path + "/manifest.json", manifest_text(manifest));
}

// Of a file whose hash is right, so that only its contents can betray it.
TEST_F(DamagedRankFile, TensorsThatTheManifestDoesNotDescribeAreRefused) {
  const ExampleShards shards(1, 1, 2);
  std::vector<TensorView> tensors;
  for (const ShardView& view : shards.views) {
    const int64_t elements = view.range.end - view.range.begin;
    if (elements == 0) continue;
    tensors.push_back({shard_tensor_name(view.range),
                       view.range.dtype,
                       {elements},
                       std::span(static_cast<const std::byte*>(view.data),
                                 static_cast<size_t>(elements * dtype_bytes(view.range.dtype)))});
  }
  const auto blocks = std::find_if(tensors.begin(), tensors.end(), [](const TensorView& tensor) {
    return tensor.name.starts_with("blocks.0/master/");
  });
  ASSERT_NE(blocks, tensors.end());
  replace_rank_file(path_, tensors);
  EXPECT_EQ(load_error(), "") << "the same tensors";

  std::vector<TensorView> more = tensors;
  more.push_back({"blocks.0/gradient/0-1", Dtype::kByte, {1}, tensors.front().data.first(1)});
  replace_rank_file(path_, more);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("rank-00001"), HasSubstr("blocks.0/gradient/0-1")));

  const TensorView whole = *blocks;
  blocks->dtype = Dtype::kInt32;
  replace_rank_file(path_, tensors);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("rank-00001"), HasSubstr(whole.name)));
  *blocks = whole;
  blocks->dims = {whole.dims.front() - 1};
  blocks->data = whole.data.first(whole.data.size() - 4);
  replace_rank_file(path_, tensors);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("rank-00001"), HasSubstr(whole.name)));
  tensors.erase(blocks);
  replace_rank_file(path_, tensors);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("rank-00001"), HasSubstr(whole.name)));
}

TEST(Reader, EveryFileIsCheckedByOneOfTheRanks) {
  const TemporaryFolder run;
  const std::string path = save_example(run.path(), 1, 3);
  for (const int64_t ranks : {1, 2, 8}) {
    for (const FileRecord& file : read_manifest(path).files) {
      const std::string name = path + "/" + file.name, whole = read_file(name);
      std::string changed = whole;
      changed.back() = static_cast<char>(changed.back() ^ 4);
      overwrite(name, changed);
      const CheckpointReader reader(path);
      int found = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        try {
          reader.verify_share(rank, ranks);
        } catch (const UserError& error) {
          EXPECT_THAT(error.what(), HasSubstr(name));
          EXPECT_EQ(error.place().file, name);
          ++found;
        }
      }
      EXPECT_EQ(found, 1) << file.name << " by " << ranks;
      overwrite(name, whole);
    }
    const CheckpointReader reader(path);
    for (int64_t rank = 0; rank < ranks; ++rank) EXPECT_NO_THROW(reader.verify_share(rank, ranks));
  }
}

TEST(Reader, ParameterHashDoesNotDependOnTheLayout) {
  const TemporaryFolder run;
  const std::string one =
      stored_parameter_hash(CheckpointReader(save_example(run.path(), 1, 1, 9)));
  EXPECT_EQ(stored_parameter_hash(CheckpointReader(save_example(run.path(), 2, 5, 9))), one);
  EXPECT_NE(stored_parameter_hash(CheckpointReader(save_example(run.path(), 3, 5, 8))), one);
  // By name: blocks.0.scale, blocks.0.up.weight, head.bias, norm.bias, tokens.weight.
  Hasher128 reference;
  const auto feed = [&](const char* unit, int64_t begin, int64_t end) {
    reference.update(example_bytes(9, {unit, kMaster, begin, end, Dtype::kFloat32}));
  };
  feed("blocks.0", 56, 57);
  feed("blocks.0", 0, 56);
  feed("head", 0, 1);
  feed("embedding", 100, 103);
  feed("embedding", 0, 100);
  EXPECT_EQ(one, reference.hex());
}

}  // namespace
}  // namespace strait::checkpoint
