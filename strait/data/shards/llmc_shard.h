// llm.c's token files: 256 header words of 32 bits (magic, version, number of tokens), then the
// tokens. Format: karpathy/llm.c, dev/data/data_common.py (write_datafile) and llmc/dataloader.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "strait/data/shards/output_file.h"
#include "strait/data/shards/tokens.h"

namespace strait {

/// Whether the first bytes are the magic number of llm.c's token files.
bool is_llmc_shard(std::string_view bytes);

/// The tokens of a shard, mapped: version 1 (GPT-2) has 16 bits each, version 7 (Llama 3) 32.
/// UserError (key data.path) naming the file and what is wrong: too short for a header, another
/// magic number or version, a number of tokens that the length of the file contradicts (both in
/// bytes).
TokenSegment open_llmc_shard(const std::string& path);

/// Writes one shard; nothing is at `path` before finish().
class LlmcWriter {
 public:
  /// kUint16 makes version 1, kUint32 version 7.
  LlmcWriter(const std::string& path, TokenType type);
  /// Tokens must fit the type; InternalError otherwise. InputOutputError when the disk is full.
  void append(std::span<const int32_t> tokens);
  int64_t tokens() const { return tokens_; }
  void finish();

 private:
  OutputFile file_;
  TokenType type_;
  int64_t tokens_ = 0;
};

}  // namespace strait
