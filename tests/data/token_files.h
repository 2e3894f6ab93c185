// Tiny writers of llm.c shards and Megatron pairs, made from the descriptions of the formats and
// not from our own writers, so that they check those too.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "strait/data/options.h"

namespace strait::testing {

inline DataOptions options_for(const std::string& path, const std::string& tokenizer,
                               double share = 0, const std::string& separator = "") {
  DataOptions options;
  options.path = path;
  options.tokenizer = tokenizer;
  options.validation_share = share;
  options.document_separator = separator;
  return options;
}

/// A little-endian number of sizeof(T) bytes.
template <class T>
std::string raw(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i)
    bytes += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
  return bytes;
}

template <class T, class U>
std::string raw_all(const std::vector<U>& values) {
  std::string bytes;
  for (const U value : values) bytes += raw<T>(static_cast<T>(value));
  return bytes;
}

/// Header of an llm.c shard: magic, version, count, and 253 zeros.
inline std::string llmc_header(int64_t magic, int64_t version, int64_t count) {
  std::vector<int64_t> words(256, 0);
  words[0] = magic;
  words[1] = version;
  words[2] = count;
  return raw_all<int32_t>(words);
}

/// GPT-2's kind.
inline std::string llmc_shard(const std::vector<int64_t>& tokens) {
  return llmc_header(20240520, 1, static_cast<int64_t>(tokens.size())) + raw_all<uint16_t>(tokens);
}

/// Llama 3's kind.
inline std::string llmc_shard_32(const std::vector<int64_t>& tokens) {
  return llmc_header(20240801, 7, static_cast<int64_t>(tokens.size())) + raw_all<uint32_t>(tokens);
}

/// An .idx. `documents`: the sequences with which documents begin, then the number of sequences.
inline std::string megatron_index(int code, int width, const std::vector<int64_t>& lengths,
                                  const std::vector<int64_t>& documents) {
  std::vector<int64_t> pointers;
  int64_t next = 0;
  for (const int64_t length : lengths) {
    pointers.push_back(next);
    next += length * width;
  }
  return std::string("MMIDIDX\0\0", 9) + raw<uint64_t>(1) +
         raw<uint8_t>(static_cast<uint8_t>(code)) + raw<uint64_t>(lengths.size()) +
         raw<uint64_t>(documents.size()) + raw_all<int32_t>(lengths) + raw_all<int64_t>(pointers) +
         raw_all<int64_t>(documents);
}

}  // namespace strait::testing
