// Batches of whole documents as rows of one length, for any number of rows: what each rank trains
// on where train.global_batch_tokens is set.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "strait/data/loader.h"
#include "strait/data/token_batches.h"

namespace strait {

/// Which documents stand in which row, ascending in each: of the least sum of squares, which is the
/// work of attention, with room; where that leaves no room by tokens, and at last first-fit,
/// longest first (Johnson 1973). Ties by index. InternalError where a document finds no room: the
/// caller gives rows that hold any documents (config/document_rows.h). Cost: O(n log n + n rows).
std::vector<std::vector<int32_t>> pack_documents(std::span<const int64_t> lengths, int64_t rows,
                                                 int64_t capacity);

/// Positions [begin, end) of a row's document.
struct DocumentPart {
  int32_t document = 0;
  int64_t begin = 0, end = 0;
};

/// Of one rank. Batches are counted over the whole run; documents and their order do not depend on
/// the number of rows. Thread-safe.
class DocumentLoader {
 public:
  /// `documents`: tokens of documents that a row holds at most.
  struct Rows {
    int64_t count = 1, tokens = 1, documents = 1;
  };
  /// `batches` must outlive the loader. Batch `first` begins at `position`; none before it is asked
  /// for.
  DocumentLoader(const TokenBatches& batches, const Rows& rows, int64_t first = 0,
                 const BatchPosition& position = {});

  /// Rows `first_row` .. `first_row + count - 1` of a batch. Behind a row's documents stand
  /// positions of input 0 that are not counted, each a document of its own. Sequences are numbered
  /// over the run, and their numbers depend on the rows.
  void fill(int64_t batch, int64_t first_row, int64_t count, BatchBuffer& buffer);
  /// Of the documents of a row, in its order.
  std::vector<int64_t> lengths(int64_t batch, int64_t row);
  /// Of all documents of a batch.
  std::vector<int64_t> lengths(int64_t batch);
  /// Parts of a row's documents, one behind the other, then padding up to `tokens`. No
  /// document starts: whoever asks knows what stands where.
  void fill(int64_t batch, int64_t row, std::span<const DocumentPart> parts, int64_t tokens,
            BatchBuffer& buffer);
  /// Of a batch: its tokens, and those that are predicted.
  int64_t tokens(int64_t batch);
  int64_t counted(int64_t batch);
  /// Where a batch begins: what a checkpoint keeps.
  BatchPosition position(int64_t batch);

 private:
  struct Batch {
    int64_t number = -1;
    std::vector<DocumentPiece> pieces;
    std::vector<std::vector<int32_t>> rows;
  };
  /// With the lock held. Batches behind the furthest so far are found one after the other.
  const Batch& at(int64_t number);
  BatchPosition begin_of(int64_t number);
  void fill_row(const Batch& batch, int64_t row, int64_t to, BatchBuffer& buffer) const;

  const TokenBatches& batches_;
  Rows rows_;
  int64_t first_;
  std::vector<BatchPosition> positions_;  // of batches from first_ on
  std::array<Batch, 2> kept_;             // one is trained on, the next is planned
  std::mutex mutex_;
};

}  // namespace strait
