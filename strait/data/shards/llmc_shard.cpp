#include "strait/data/shards/llmc_shard.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <limits>

#include "strait/base/errors.h"
#include "strait/data/shards/mapped_file.h"

namespace strait {
namespace {

constexpr int64_t kHeaderWords = 256;
constexpr int64_t kHeaderBytes = kHeaderWords * 4;

struct Kind {
  int32_t magic, version;
  TokenType type;
};
constexpr std::array kKinds = {Kind{20240520, 1, TokenType::kUint16},
                               Kind{20240801, 7, TokenType::kUint32},
                               Kind{20240520, 7, TokenType::kUint32}};

int32_t word(std::string_view bytes, int64_t index) {
  int32_t value = 0;
  std::memcpy(&value, bytes.data() + 4 * index, sizeof value);
  return value;
}

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  ErrorPlace place;
  place.file = path;
  place.key = "data.path";
  throw UserError(fmt::format("{}: {}", path, what), place);
}

TokenType type_of(const std::string& path, std::string_view bytes) {
  if (bytes.size() < kHeaderBytes)
    refuse(path, fmt::format("truncated: the header of an llm.c shard has {} bytes, the file {}",
                             kHeaderBytes, bytes.size()));
  const int32_t magic = word(bytes, 0), version = word(bytes, 1);
  bool known_magic = false;
  for (const Kind& kind : kKinds) {
    known_magic |= kind.magic == magic;
    if (kind.magic == magic && kind.version == version) return kind.type;
  }
  if (known_magic)
    refuse(path,
           fmt::format("version {} of llm.c's token files is not known; version 1 (16 bits per "
                       "token) and 7 (32 bits) are",
                       version));
  const char* hint = magic == 20240522   ? "; these are llm.c's multiple-choice questions"
                     : magic == 20240326 ? "; this is a model of llm.c"
                                         : "";
  refuse(path, fmt::format("the magic number is {}, but llm.c's token files begin with 20240520 "
                           "(version 1) or 20240801 (version 7){}",
                           magic, hint));
}

}  // namespace

bool is_llmc_shard(std::string_view bytes) {
  if (bytes.size() < 4) return false;
  for (const Kind& kind : kKinds)
    if (word(bytes, 0) == kind.magic) return true;
  return false;
}

TokenSegment open_llmc_shard(const std::string& path) {
  const auto file = std::make_shared<const MappedFile>(path);
  const std::string_view bytes = file->bytes();
  TokenSegment segment;
  segment.type = type_of(path, bytes);
  segment.count = word(bytes, 2);
  if (segment.count < 0)
    refuse(path, fmt::format("the header gives a negative number of tokens, {}", segment.count));
  const int64_t width = token_bytes(segment.type);
  const int64_t needed = kHeaderBytes + segment.count * width;
  const auto size = static_cast<int64_t>(bytes.size());
  if (needed != size)
    refuse(path,
           fmt::format("{}: {} tokens of {} bytes behind the header make {} bytes, the file has {}",
                       size < needed ? "truncated" : "longer than its header says", segment.count,
                       width, needed, size));
  segment.owner = file;
  segment.data = reinterpret_cast<const std::byte*>(bytes.data()) + kHeaderBytes;
  segment.file = path;
  segment.file_offset = kHeaderBytes;
  return segment;
}

LlmcWriter::LlmcWriter(const std::string& path, TokenType type) : file_(path), type_(type) {
  ensure(type == TokenType::kUint16 || type == TokenType::kUint32,
         "llm.c's token files hold 16 or 32 unsigned bits per token");
  file_.append(std::string(kHeaderBytes, '\0'));
}

void LlmcWriter::append(std::span<const int32_t> tokens) {
  file_.append(stored_tokens(tokens, type_));
  tokens_ += static_cast<int64_t>(tokens.size());
  ensure(tokens_ <= std::numeric_limits<int32_t>::max(), "too many tokens for one llm.c shard");
}

void LlmcWriter::finish() {
  std::array<int32_t, kHeaderWords> header{};
  for (const Kind& kind : kKinds) {
    if (kind.type != type_ || header[0] != 0) continue;
    header[0] = kind.magic;
    header[1] = kind.version;
  }
  header[2] = static_cast<int32_t>(tokens_);
  file_.finish({reinterpret_cast<const char*>(header.data()), sizeof header});
}

}  // namespace strait
