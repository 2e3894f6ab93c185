#include "strait/checkpoint/files/safetensors.h"

#include <gmock/gmock.h>

#include <array>
#include <fstream>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/files/hash.h"
#include "tests/checkpoint/example_run.h"
#include "tests/file_size_limit.h"

namespace strait::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::array kAllDtypes = {Dtype::kByte,    Dtype::kInt32,    Dtype::kInt64,
                                   Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32,
                                   Dtype::kFloat64};

/// A file put together by hand.
std::string raw_file(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  return file + header + std::string(data_bytes, '\x2a');
}

void write_raw(const std::string& path, std::string_view contents) {
  std::ofstream(path, std::ios::binary)
      .write(contents.data(), static_cast<std::streamsize>(contents.size()));
}

std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  std::vector<std::byte> bytes(count);
  const RandomStream stream(seed, "bytes");
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(stream.bits(i));
  return bytes;
}

TEST(Safetensors, RoundTripOfEveryDtypeAndShape) {
  const TemporaryFolder folder;
  const std::vector<std::vector<int64_t>> shapes = {{},  {1},    {0},          {3, 0, 2},
                                                    {7}, {5, 3}, {2, 3, 4, 5}, {100003}};
  std::vector<std::vector<std::byte>> memory;
  std::vector<TensorView> views;
  for (const Dtype dtype : kAllDtypes)
    for (const auto& dims : shapes) {
      int64_t bytes = dtype_bytes(dtype);
      for (const int64_t dim : dims) bytes *= dim;
      memory.push_back(random_bytes(static_cast<size_t>(bytes), views.size()));
      views.push_back({"t\"\\é " + std::to_string(views.size()), dtype, dims, {}});
    }
  for (size_t i = 0; i < views.size(); ++i) views[i].data = memory[i];
  const std::string path = folder.path() + "/all.safetensors";
  const WrittenFile written = write_safetensors(path, views, {{"who", "tests"}, {"empty", ""}});

  const SafetensorsFile file(path);
  EXPECT_EQ(written.bytes, file.file().bytes());
  EXPECT_EQ(written.hash, hash_hex(read_file(path)));
  EXPECT_EQ(file.metadata(), (Metadata{{"who", "tests"}, {"empty", ""}}));
  ASSERT_EQ(file.tensors().size(), views.size());
  for (size_t i = 0; i < views.size(); ++i) {
    const TensorInfo& tensor = file.tensor(views[i].name);
    EXPECT_EQ(tensor.dtype, views[i].dtype);
    EXPECT_EQ(tensor.dims, views[i].dims);
    EXPECT_EQ(tensor.begin % dtype_bytes(tensor.dtype), 0) << "aligned to its element";
    std::vector<std::byte> loaded(memory[i].size());
    file.read_tensor(tensor, loaded);
    EXPECT_EQ(loaded, memory[i]) << i;
  }
}

TEST(Safetensors, ReadsPartsOfATensor) {
  const TemporaryFolder folder;
  const std::vector<int32_t> values = {10, 11, 12, 13, 14};
  const std::string path = folder.path() + "/part.safetensors";
  write_safetensors(path, {{"x", Dtype::kInt32, {5}, std::as_bytes(std::span(values))}});
  const SafetensorsFile file(path);
  for (int64_t begin = 0; begin <= 5; ++begin)
    for (int64_t end = begin; end <= 5; ++end) {
      std::vector<int32_t> part(static_cast<size_t>(end - begin));
      file.read_elements(file.tensor("x"), begin, std::as_writable_bytes(std::span(part)));
      EXPECT_EQ(part, std::vector<int32_t>(values.begin() + begin, values.begin() + end));
    }
  std::vector<int32_t> beyond(2);
  EXPECT_THROW(file.read_elements(file.tensor("x"), 4, std::as_writable_bytes(std::span(beyond))),
               InternalError);
  EXPECT_THROW(file.read_tensor(file.tensor("x"), std::as_writable_bytes(std::span(beyond))),
               InternalError);
  EXPECT_THAT(message_of<UserError>([&] { file.tensor("y"); }),
              AllOf(HasSubstr(path), HasSubstr("\"x\"")));
}

// The bytes of a whole file, written down by hand from the format's description.
TEST(Safetensors, WritesTheFormatByteForByte) {
  const TemporaryFolder folder;
  const std::vector<uint8_t> bytes = {1, 2, 3};
  const std::string path = folder.path() + "/small.safetensors";
  write_safetensors(path, {{"b", Dtype::kByte, {3}, std::as_bytes(std::span(bytes))}});
  std::string header = R"({"b": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}})";
  ASSERT_LT(header.size(), 120u);
  header.resize(120, ' ');  // 8 + 120 = 2 * 64
  EXPECT_EQ(read_file(path), std::string("\x78\0\0\0\0\0\0\0", 8) + header + "\x01\x02\x03");
}

TEST(Safetensors, FileWithoutTensors) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/none.safetensors";
  EXPECT_EQ(write_safetensors(path, {}).bytes, 64);
  EXPECT_TRUE(SafetensorsFile(path).tensors().empty());
}

struct Malformed {
  const char* name;
  std::string header;
  size_t data_bytes;
  const char* says;
};

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"x": {"dtype": ")" + dtype + R"(", "shape": )" + shape + R"(, "data_offsets": )" +
         offsets + "}}";
}

std::string two(const std::string& first_offsets, const std::string& second_offsets) {
  return R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": )" + first_offsets +
         R"(}, "b": {"dtype": "U8", "shape": [4], "data_offsets": )" + second_offsets + "}}";
}

std::string many_members(int64_t count) {
  std::string header = "{";
  for (int64_t i = 0; i < count; ++i) header += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  return header + "}";
}

std::vector<Malformed> malformed_headers() {
  return {
      {"not JSON", "{\"x\": ", 4, "not valid JSON"},
      {"not an object", "[1, 2]", 4, "does not start with '{'"},
      {"leading space", " {}", 0, "does not start with '{'"},
      {"text behind", "{} x", 0, "not valid JSON"},
      {"zero byte behind", std::string("{}\0", 3), 0, "holds a zero byte"},
      {"invalid UTF-8", "{\"\xff\": 1}", 0, "not valid JSON"},
      {"duplicate key", two("[0, 4]", "[4, 8]").replace(2, 1, "b"), 8, "stands twice"},
      {"entry is a number", R"({"x": 3})", 0, "entry \"x\""},
      {"metadata is a list", R"({"__metadata__": []})", 0, "__metadata__"},
      {"metadata with a number", R"({"__metadata__": {"a": 1}})", 0, "expected a string"},
      {"no dtype", R"({"x": {"shape": [1], "data_offsets": [0, 1]}})", 1, "\"dtype\" is missing"},
      {"no shape", R"({"x": {"dtype": "U8", "data_offsets": [0, 1]}})", 1, "\"shape\" is missing"},
      {"no offsets", R"({"x": {"dtype": "U8", "shape": [1]}})", 1, "\"data_offsets\" is missing"},
      {"unknown key", R"({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1], "y": 0}})", 1,
       "unknown key \"y\""},
      {"unknown dtype", entry("F8_E4M3", "[4]", "[0, 4]"), 4, "F8_E4M3 is not one of F64 F32"},
      {"dtype is a number", R"({"x": {"dtype": 1, "shape": [1], "data_offsets": [0, 1]}})", 1,
       "expected a string"},
      {"shape is a number", entry("U8", "4", "[0, 4]"), 4, "expected an array"},
      {"fractional dim", entry("U8", "[4.5]", "[0, 4]"), 4, "expected an integer"},
      {"negative dim", entry("U8", "[-4]", "[0, 4]"), 4, "negative"},
      {"two negative dims", entry("U8", "[-2, -2]", "[0, 4]"), 4, "negative"},
      {"dim beyond 64 bits", entry("U8", "[18446744073709551620]", "[0, 4]"), 4,
       "expected an integer"},
      {"product overflows", entry("U8", "[4294967296, 4294967296, 4]", "[0, 0]"), 0, "overflows"},
      {"bytes overflow", entry("F64", "[2305843009213693952]", "[0, 0]"), 0, "overflows"},
      {"three offsets", entry("U8", "[4]", "[0, 4, 8]"), 4, "3 numbers"},
      {"offset is text", entry("U8", "[4]", "[0, \"4\"]"), 4, "expected an integer"},
      {"offset beyond 64 bits", entry("U8", "[4]", "[0, 18446744073709551620]"), 4,
       "expected an integer"},
      {"negative begin", entry("U8", "[4]", "[-4, 0]"), 4, "is no range"},
      {"end before begin", entry("U8", "[4]", "[4, 0]"), 4, "is no range"},
      {"out of range", entry("U8", "[5]", "[0, 5]"), 4, "out of range"},
      {"far out of range", entry("U8", "[1]", "[9223372036854775806, 9223372036854775807]"), 4,
       "out of range"},
      {"shape larger than range", entry("F32", "[2]", "[0, 4]"), 4, "needs 8 bytes"},
      {"shape smaller than range", entry("U8", "[3]", "[0, 4]"), 4, "needs 3 bytes"},
      {"wrong dtype for the length", entry("F16", "[4]", "[0, 4]"), 4, "needs 8 bytes"},
      {"empty range of a full shape", entry("U8", "[4]", "[0, 0]"), 0, "needs 4 bytes"},
      {"full range of an empty shape", entry("U8", "[0]", "[0, 4]"), 4, "needs 0 bytes"},
      {"overlap", two("[0, 4]", "[3, 7]"), 7, "overlaps \"a\""},
      {"same range twice", two("[0, 4]", "[0, 4]"), 4, "overlaps"},
      {"hole", two("[0, 4]", "[5, 9]"), 9, "hole of 1 bytes before tensor \"b\""},
      {"hole at the start", entry("U8", "[4]", "[2, 6]"), 6, "hole of 2 bytes"},
      {"trailing bytes", entry("U8", "[4]", "[0, 4]"), 5, "1 trailing bytes"},
      {"data without tensors", "{}", 3, "3 trailing bytes"},
      {"deep nesting", "{\"x\": " + std::string(300, '[') + std::string(300, ']') + "}", 0,
       "200 deep"},
      {"too many members", many_members(kMaximumHeaderMembers + 1), 0, "more than 10000 members"},
  };
}

TEST(Safetensors, EveryMalformedHeaderIsRefused) {
  for (const Malformed& bad : malformed_headers()) {
    SCOPED_TRACE(bad.name);
    const std::string file = raw_file(bad.header, bad.data_bytes);
    EXPECT_THAT(message_of<UserError>([&] { parse_safetensors(file, "some/file.st"); }),
                AllOf(HasSubstr("some/file.st"), HasSubstr(bad.says)));
  }
}

TEST(Safetensors, HeaderLengthsThatLie) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  const auto with_length = [](uint64_t length, size_t rest) {
    return std::string(reinterpret_cast<const char*>(&length), 8) + std::string(rest, '{');
  };
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"", "0 bytes long"},
      {"1234567", "7 bytes long"},
      {with_length(0, 0), "too short"},
      {with_length(1, 1), "too short"},
      {with_length(100, 99), "truncated"},
      {with_length(100'000'001, 50), "exceeds 100000000"},
      {with_length(100'000'000, 50), "truncated"},
      {with_length(~uint64_t{0}, 50), "exceeds"},
      {with_length(uint64_t{1} << 63, 50), "exceeds"}};
  for (const auto& [contents, says] : cases) {
    EXPECT_THAT(message_of<UserError>([&] { parse_safetensors(contents, path); }), HasSubstr(says));
    write_raw(path, contents);
    EXPECT_THAT(message_of<UserError>([&] { SafetensorsFile file(path); }),
                AllOf(HasSubstr(path), HasSubstr(says)));
  }
  EXPECT_THAT(message_of<UserError>([&] { SafetensorsFile file(folder.path() + "/none"); }),
              HasSubstr("/none"));
  EXPECT_THAT(message_of<UserError>([&] { SafetensorsFile file(folder.path()); }),
              HasSubstr("is a folder, not a file"));
}

// Any proper prefix misses a part of the header or of the data.
TEST(Safetensors, TruncationAtEveryByteIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/whole", cut_path = folder.path() + "/cut";
  const std::vector<std::byte> data = random_bytes(24, 1);
  write_safetensors(path, {{"x", Dtype::kFloat32, {2, 2}, std::span(data).first(16)},
                           {"y", Dtype::kByte, {8}, std::span(data).last(8)}});
  const std::string whole = read_file(path);
  EXPECT_NO_THROW(parse_safetensors(whole, path));
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const std::string_view cut = std::string_view(whole).substr(0, bytes);
    EXPECT_THROW(parse_safetensors(cut, cut_path), UserError) << bytes;
    write_raw(cut_path, cut);
    EXPECT_THROW(SafetensorsFile file(cut_path), UserError) << bytes;
  }
}

// The file may shrink after it was opened.
TEST(Safetensors, TruncationWhileOpenIsAnError) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  std::vector<std::byte> data(100);
  write_safetensors(path, {{"x", Dtype::kByte, {100}, data}});
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(message_of<UserError>([&] { file.read_tensor(file.tensor("x"), data); }),
              HasSubstr("truncated"));
}

TEST(Safetensors, WriterRefusesWhatNoReaderWouldTake) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  const std::vector<std::byte> data(8);
  EXPECT_THROW(write_safetensors(path, {{"x", Dtype::kFloat32, {3}, data}}), InternalError);
  EXPECT_THROW(
      write_safetensors(path, {{"x", Dtype::kByte, {8}, data}, {"x", Dtype::kByte, {8}, data}}),
      InternalError);
  EXPECT_THROW(write_safetensors(path, {{"__metadata__", Dtype::kByte, {8}, data}}), InternalError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Safetensors, FullDiskLeavesTheOldFileAndNoOther) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  write_raw(path, "old");
  const std::vector<std::byte> data(3 << 20);
  const std::vector<TensorView> tensors = {{"x", Dtype::kByte, {3 << 20}, data}};
  for (const rlim_t limit : {0, 1, 127, 128, 5000, 2 << 20, (3 << 20) + 127}) {
    const test::FileSizeLimit full(limit);
    EXPECT_THAT(message_of<InputOutputError>([&] { write_safetensors(path, tensors); }),
                HasSubstr(path))
        << limit;
    EXPECT_EQ(read_file(path), "old");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << limit;
  }
  const test::FileSizeLimit enough((3 << 20) + 128);
  EXPECT_EQ(write_safetensors(path, tensors).bytes, (3 << 20) + 128);
}

TEST(Safetensors, WriterReplacesAWholeFileOrNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  write_raw(path, "old");
  const std::vector<std::byte> data(8);
  EXPECT_THAT(message_of<InputOutputError>([&] {
                write_safetensors(path + "/x", {{"x", Dtype::kByte, {8}, data}});
              }),
              HasSubstr(path + "/x"));
  EXPECT_EQ(read_file(path), "old");
  write_safetensors(path, {{"x", Dtype::kByte, {8}, data}});
  EXPECT_EQ(SafetensorsFile(path).tensors().size(), 1u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace strait::checkpoint
