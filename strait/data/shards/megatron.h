// Megatron's pairs: PREFIX.bin holds nothing but tokens, PREFIX.idx says which type they have, how
// they are cut into sequences and which sequences make a document. Format: NVIDIA/Megatron-LM,
// megatron/core/datasets/indexed_dataset.py (_IndexReader, _IndexWriter).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strait/data/shards/output_file.h"
#include "strait/data/shards/tokens.h"

namespace strait {

/// Whether the first bytes are those of an .idx file.
bool is_megatron_index(std::string_view bytes);

struct MegatronPair {
  TokenSegment tokens;
  /// Positions where documents begin, ascending; empty documents are left out.
  std::vector<int64_t> document_starts;
};

/// Opens `prefix`.idx and `prefix`.bin, both mapped; the index is checked whole and nothing of it
/// kept but the documents (8 bytes each). UserError (key data.path) naming the file, the byte
/// offset and what is wrong: a missing half, another magic number or version, a type that holds no
/// tokens, an index that is truncated or too long, lengths below zero, pointers that are not the
/// sums of the lengths before them, documents out of order, a .bin of another size than the index
/// says. Cost: one pass over the .idx.
MegatronPair open_megatron(const std::string& prefix);

/// Writes a pair, the index last. A document of any length is one sequence, or several of 2^30
/// tokens.
class MegatronWriter {
 public:
  /// `type`: kUint16 or kInt32.
  MegatronWriter(const std::string& prefix, TokenType type);
  void begin_document();
  /// Goes on with the document that began last.
  void append(std::span<const int32_t> tokens);
  int64_t tokens() const { return tokens_; }
  void finish();

 private:
  std::string prefix_;
  OutputFile file_;
  TokenType type_;
  int64_t tokens_ = 0;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_;  // the sequence each begins with
};

}  // namespace strait
