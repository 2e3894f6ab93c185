#include "strait/data/shards/megatron.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <optional>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/data/shards/mapped_file.h"

namespace strait {
namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr uint64_t kVersion = 1;
// Offsets of what follows the magic number; nothing is aligned.
constexpr int64_t kVersionAt = 9, kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26;
constexpr int64_t kHeaderBytes = 34;
constexpr int64_t kLongestSequence = int64_t{1} << 30;

struct TypeCode {
  uint8_t code;
  const char* name;
  std::optional<TokenType> type;
};
constexpr std::array kTypes = {
    TypeCode{1, "uint8", TokenType::kUint8}, TypeCode{2, "int8", TokenType::kInt8},
    TypeCode{3, "int16", TokenType::kInt16}, TypeCode{4, "int32", TokenType::kInt32},
    TypeCode{5, "int64", TokenType::kInt64}, TypeCode{6, "float64", std::nullopt},
    TypeCode{7, "float32", std::nullopt},    TypeCode{8, "uint16", TokenType::kUint16}};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  ErrorPlace place;
  place.file = path;
  place.key = "data.path";
  throw UserError(fmt::format("{}: {}", path, what), place);
}

template <class T>
T value_at(std::string_view bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// The arrays of an index that has been found long enough.
struct Index {
  const std::string& path;
  std::string_view bytes;
  TokenType type = TokenType::kInt32;
  int64_t sequences = 0, documents = 0;

  int64_t lengths_at() const { return kHeaderBytes; }
  int64_t pointers_at() const { return lengths_at() + 4 * sequences; }
  int64_t documents_at() const { return pointers_at() + 8 * sequences; }
  int64_t end() const { return documents_at() + 8 * documents; }
  int32_t length(int64_t i) const { return value_at<int32_t>(bytes, lengths_at() + 4 * i); }
  int64_t pointer(int64_t i) const { return value_at<int64_t>(bytes, pointers_at() + 8 * i); }
  int64_t document(int64_t i) const { return value_at<int64_t>(bytes, documents_at() + 8 * i); }
};

TokenType type_of(const Index& index) {
  const auto code = value_at<uint8_t>(index.bytes, kTypeAt);
  for (const TypeCode& type : kTypes) {
    if (type.code != code) continue;
    if (type.type) return *type.type;
    refuse(index.path, fmt::format("at byte {}: type {} ({}) holds no tokens; integers do", kTypeAt,
                                   code, type.name));
  }
  refuse(index.path,
         fmt::format("at byte {}: type {} is not known; the types are 1 to 8", kTypeAt, code));
}

void read_header(Index& index) {
  const auto size = static_cast<int64_t>(index.bytes.size());
  const auto begin = index.bytes.substr(0, kMagic.size());
  if (begin != kMagic.substr(0, begin.size()) || begin.empty())
    refuse(index.path, "does not begin with MMIDIDX, as an index of Megatron does");
  if (size < kHeaderBytes)
    refuse(index.path,
           fmt::format("truncated: the header has {} bytes, the file {}", kHeaderBytes, size));
  const auto version = value_at<uint64_t>(index.bytes, kVersionAt);
  if (version != kVersion)
    refuse(index.path, fmt::format("at byte {}: version {} is not known; version {} is", kVersionAt,
                                   version, kVersion));
  index.type = type_of(index);
  const auto sequences = value_at<uint64_t>(index.bytes, kSequencesAt);
  const auto documents = value_at<uint64_t>(index.bytes, kDocumentsAt);
  // Compared before they are multiplied: the header may hold any number.
  const auto most = static_cast<uint64_t>(size);
  if (sequences > most || documents > most)
    refuse(index.path,
           fmt::format("truncated: {} sequences and {} document borders do not fit into {} bytes",
                       sequences, documents, size));
  index.sequences = static_cast<int64_t>(sequences);
  index.documents = static_cast<int64_t>(documents);
  if (size < index.end())
    refuse(index.path,
           fmt::format(
               "truncated: {} sequences and {} document borders need {} bytes, the file has {}",
               sequences, documents, index.end(), size));
  if (size == index.end() + index.sequences && index.sequences > 0)
    refuse(index.path,
           "has a mode for each sequence, as data of several kinds (images and text) do; only "
           "text is read");
  if (size > index.end())
    refuse(index.path,
           fmt::format("{} sequences and {} document borders need {} bytes, the file has {}",
                       sequences, documents, index.end(), size));
}

/// Positions at which sequences begin are sums of lengths; returns the tokens of all.
int64_t check_sequences(const Index& index) {
  const int64_t width = token_bytes(index.type);
  int64_t tokens = 0;
  for (int64_t i = 0; i < index.sequences; ++i) {
    const int32_t length = index.length(i);
    if (length < 0)
      refuse(index.path, fmt::format("at byte {}: sequence {} has the length {}",
                                     index.lengths_at() + 4 * i, i, length));
    if (index.pointer(i) != tokens * width)
      refuse(index.path,
             fmt::format("at byte {}: sequence {} begins at byte {} of the .bin file, but the {} "
                         "tokens of {} bytes before it end at byte {}",
                         index.pointers_at() + 8 * i, i, index.pointer(i), tokens, width,
                         tokens * width));
    tokens += length;
  }
  return tokens;
}

std::vector<int64_t> document_starts(const Index& index, int64_t tokens) {
  std::vector<int64_t> starts;
  int64_t before = 0;
  const int64_t width = token_bytes(index.type);
  for (int64_t i = 0; i < index.documents; ++i) {
    const int64_t sequence = index.document(i);
    const bool last = i + 1 == index.documents;
    if (sequence < before || sequence > index.sequences || (i == 0 && sequence != 0) ||
        (last && sequence != index.sequences))
      refuse(index.path,
             fmt::format("at byte {}: document border {} is sequence {}; borders rise from 0 to "
                         "the number of sequences, {}",
                         index.documents_at() + 8 * i, i, sequence, index.sequences));
    before = sequence;
    if (sequence == index.sequences) continue;
    const int64_t start = index.pointer(sequence) / width;
    if (start == tokens || (!starts.empty() && starts.back() == start)) continue;
    starts.push_back(start);
  }
  return starts;
}

template <class T>
void append_value(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

bool is_megatron_index(std::string_view bytes) { return bytes.starts_with(kMagic); }

MegatronPair open_megatron(const std::string& prefix) {
  const std::string index_path = prefix + ".idx", tokens_path = prefix + ".bin";
  for (const auto& [half, other] :
       {std::pair(index_path, tokens_path), std::pair(tokens_path, index_path)})
    if (!std::filesystem::is_regular_file(half))
      refuse(half, fmt::format("is missing, the other half of {}", other));
  const MappedFile index_file(index_path);
  Index index{index_path, index_file.bytes()};
  read_header(index);
  MegatronPair pair;
  TokenSegment& segment = pair.tokens;
  segment.count = check_sequences(index);
  pair.document_starts = document_starts(index, segment.count);
  segment.type = index.type;
  segment.file = tokens_path;
  const auto file = std::make_shared<const MappedFile>(tokens_path);
  const auto size = static_cast<int64_t>(file->bytes().size());
  const int64_t needed = segment.count * token_bytes(segment.type);
  if (size != needed)
    refuse(tokens_path,
           fmt::format("{}: {} lists {} tokens of {} bytes, which are {} bytes, the file has {}",
                       size < needed ? "truncated" : "longer than its index says", index_path,
                       segment.count, token_bytes(segment.type), needed, size));
  segment.data = reinterpret_cast<const std::byte*>(file->bytes().data());
  segment.owner = file;
  return pair;
}

MegatronWriter::MegatronWriter(const std::string& prefix, TokenType type)
    : prefix_(prefix), file_(prefix + ".bin"), type_(type) {
  ensure(type == TokenType::kUint16 || type == TokenType::kInt32,
         "Megatron's pairs are written with 16 or 32 bits per token");
}

void MegatronWriter::begin_document() {
  documents_.push_back(static_cast<int64_t>(lengths_.size()));
  lengths_.push_back(0);
}

void MegatronWriter::append(std::span<const int32_t> tokens) {
  ensure(!lengths_.empty(), "MegatronWriter: no document has begun");
  file_.append(stored_tokens(tokens, type_));
  tokens_ += static_cast<int64_t>(tokens.size());
  for (auto left = static_cast<int64_t>(tokens.size()); left > 0;) {
    const int64_t fits = std::min(left, kLongestSequence - lengths_.back());
    lengths_.back() += static_cast<int32_t>(fits);
    left -= fits;
    if (left > 0) lengths_.push_back(0);
  }
}

void MegatronWriter::finish() {
  file_.finish();
  std::string index(kMagic);
  append_value(index, kVersion);
  append_value<uint8_t>(index, type_ == TokenType::kUint16 ? 8 : 4);
  append_value<uint64_t>(index, lengths_.size());
  append_value<uint64_t>(index, documents_.size() + 1);
  for (const int32_t length : lengths_) append_value(index, length);
  int64_t begin = 0;
  for (const int32_t length : lengths_) {
    append_value(index, begin);
    begin += length * token_bytes(type_);
  }
  for (const int64_t document : documents_) append_value(index, document);
  append_value(index, static_cast<int64_t>(lengths_.size()));
  write_file_atomically(prefix_ + ".idx", index);
}

}  // namespace strait
