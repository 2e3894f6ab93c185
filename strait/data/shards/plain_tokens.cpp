#include "strait/data/shards/plain_tokens.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>

#include "strait/base/errors.h"
#include "strait/data/shards/llmc_shard.h"
#include "strait/data/shards/mapped_file.h"

namespace strait {
namespace {

constexpr size_t kHeaderBytes = 1024;                       // of all files of llm.c
constexpr size_t kFieldBytes = 64;                          // of them, that files make use of
constexpr std::array kOtherMagic = {20240522u, 20240326u};  // questions and models of llm.c

bool is_other_file_of_llmc(std::string_view bytes) {
  uint32_t word = 0;
  if (bytes.size() < sizeof word) return false;
  std::memcpy(&word, bytes.data(), sizeof word);
  for (const uint32_t magic : kOtherMagic)
    if (word == magic) return true;
  return false;
}

/// No text has 480 times the first token in a row.
bool is_filled_up_with_zeros(std::string_view bytes) {
  const std::string_view header = bytes.substr(0, kHeaderBytes);
  return header.size() == kHeaderBytes &&
         header.find_first_not_of('\0', kFieldBytes) == std::string_view::npos;
}

}  // namespace

bool is_plain_tokens(std::string_view bytes) {
  return !bytes.empty() && !is_llmc_shard(bytes) && !is_other_file_of_llmc(bytes) &&
         !is_filled_up_with_zeros(bytes);
}

TokenSegment open_plain_tokens(const std::string& path) {
  const auto file = std::make_shared<const MappedFile>(path);
  const auto size = static_cast<int64_t>(file->bytes().size());
  const int64_t width = token_bytes(TokenType::kUint16);
  if (size % width != 0) {
    ErrorPlace place;
    place.file = path;
    place.key = "data.path";
    throw UserError(
        fmt::format("{}: truncated: tokens without a header have {} bytes each, the file has {}",
                    path, width, size),
        place);
  }
  TokenSegment segment;
  segment.data = reinterpret_cast<const std::byte*>(file->bytes().data());
  segment.owner = file;
  segment.type = TokenType::kUint16;
  segment.count = size / width;
  segment.file = path;
  return segment;
}

TokenSegment open_token_file(const std::string& path) {
  return is_plain_tokens(MappedFile(path).bytes()) ? open_plain_tokens(path)
                                                   : open_llmc_shard(path);
}

}  // namespace strait
