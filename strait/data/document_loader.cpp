#include "strait/data/document_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "strait/base/errors.h"

namespace strait {
namespace {

using RowsOfDocuments = std::vector<std::vector<int32_t>>;

std::vector<int32_t> longest_first(std::span<const int64_t> lengths) {
  std::vector<int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int32_t i) { return lengths[i]; });
  return order;
}

struct Load {
  int64_t tokens = 0;
  double squares = 0;
};

/// The row for a document of `length` tokens, of rows filled so far; -1: none has room.
using Choose = std::function<int64_t(const std::vector<Load>& loads, int64_t length)>;

/// Empty where a document finds no room.
RowsOfDocuments packed(std::span<const int64_t> lengths, int64_t count, const Choose& choose) {
  RowsOfDocuments rows(static_cast<size_t>(count));
  std::vector<Load> loads(rows.size());
  for (const int32_t document : longest_first(lengths)) {
    const int64_t length = lengths[static_cast<size_t>(document)];
    const int64_t row = choose(loads, length);
    if (row < 0) return {};
    loads[static_cast<size_t>(row)].tokens += length;
    loads[static_cast<size_t>(row)].squares +=
        static_cast<double>(length) * static_cast<double>(length);
    rows[static_cast<size_t>(row)].push_back(document);
  }
  for (std::vector<int32_t>& row : rows) std::ranges::sort(row);
  return rows;
}

}  // namespace

RowsOfDocuments pack_documents(std::span<const int64_t> lengths, int64_t rows, int64_t capacity) {
  ensure(rows >= 1, "pack_documents: no rows");
  const auto least = [capacity](auto load) -> Choose {
    return [capacity, load](const std::vector<Load>& loads, int64_t length) {
      int64_t best = -1;
      for (size_t row = 0; row < loads.size(); ++row)
        if (loads[row].tokens + length <= capacity &&
            (best < 0 || load(loads[row]) < load(loads[static_cast<size_t>(best)])))
          best = static_cast<int64_t>(row);
      return best;
    };
  };
  const auto first = [](const Load&) { return 0; };
  for (const Choose& choose : {least([](const Load& load) { return load.squares; }),
                               least([](const Load& load) { return load.tokens; }), least(first)}) {
    RowsOfDocuments found = packed(lengths, rows, choose);
    if (!found.empty()) return found;
  }
  throw InternalError(
      fmt::format("{} documents of {} tokens find no room in {} rows of {}", lengths.size(),
                  std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), rows, capacity));
}

DocumentLoader::DocumentLoader(const TokenBatches& batches, const Rows& rows, int64_t first,
                               const BatchPosition& position)
    : batches_(batches), rows_(rows), first_(first), positions_{position} {}

BatchPosition DocumentLoader::begin_of(int64_t number) {
  ensure(number >= first_, "DocumentLoader: a batch before the first");
  while (static_cast<int64_t>(positions_.size()) <= number - first_) {
    BatchPosition next = positions_.back();
    batches_.next(next);
    positions_.push_back(next);
  }
  return positions_[static_cast<size_t>(number - first_)];
}

const DocumentLoader::Batch& DocumentLoader::at(int64_t number) {
  Batch& batch = kept_[static_cast<size_t>(number) % kept_.size()];
  if (batch.number == number) return batch;
  BatchPosition position = begin_of(number);
  batch.pieces = batches_.next(position);
  std::vector<int64_t> lengths;
  for (const DocumentPiece& piece : batch.pieces) lengths.push_back(piece.length);
  batch.rows = pack_documents(lengths, rows_.count, rows_.documents);
  batch.number = number;
  return batch;
}

void DocumentLoader::fill(int64_t batch, int64_t first_row, int64_t count, BatchBuffer& buffer) {
  const std::lock_guard lock(mutex_);
  const Batch& documents = at(batch);
  const auto size = static_cast<size_t>(count * rows_.tokens);
  buffer.inputs.resize(size);
  buffer.targets.resize(size);
  buffer.document_starts.resize(size);
  buffer.sequences.resize(static_cast<size_t>(count));
  for (int64_t row = 0; row < count; ++row) {
    buffer.sequences[static_cast<size_t>(row)] = batch * rows_.count + first_row + row;
    fill_row(documents, first_row + row, row * rows_.tokens, buffer);
  }
}

void DocumentLoader::fill_row(const Batch& batch, int64_t row, int64_t to,
                              BatchBuffer& buffer) const {
  int64_t at = 0;  // position in the row
  for (const int32_t document : batch.rows[static_cast<size_t>(row)]) {
    const DocumentPiece& piece = batch.pieces[static_cast<size_t>(document)];
    const auto length = static_cast<size_t>(piece.length);
    batches_.read(piece, 0, {buffer.inputs.data() + to + at, length},
                  {buffer.targets.data() + to + at, length});
    std::fill_n(buffer.document_starts.begin() + to + at, length, static_cast<int32_t>(at));
    at += piece.length;
  }
  std::fill(buffer.inputs.begin() + to + at, buffer.inputs.begin() + to + rows_.tokens, 0);
  std::fill(buffer.targets.begin() + to + at, buffer.targets.begin() + to + rows_.tokens,
            kIgnoredTarget);
  std::iota(buffer.document_starts.begin() + to + at,
            buffer.document_starts.begin() + to + rows_.tokens, static_cast<int32_t>(at));
}

std::vector<int64_t> DocumentLoader::lengths(int64_t batch, int64_t row) {
  const std::lock_guard lock(mutex_);
  const Batch& documents = at(batch);
  std::vector<int64_t> lengths;
  for (const int32_t document : documents.rows[static_cast<size_t>(row)])
    lengths.push_back(documents.pieces[static_cast<size_t>(document)].length);
  return lengths;
}

std::vector<int64_t> DocumentLoader::lengths(int64_t batch) {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> lengths;
  for (const DocumentPiece& piece : at(batch).pieces) lengths.push_back(piece.length);
  return lengths;
}

void DocumentLoader::fill(int64_t batch, int64_t row, std::span<const DocumentPart> parts,
                          int64_t tokens, BatchBuffer& buffer) {
  const std::lock_guard lock(mutex_);
  const Batch& documents = at(batch);
  const std::vector<int32_t>& numbers = documents.rows[static_cast<size_t>(row)];
  buffer.inputs.assign(static_cast<size_t>(tokens), 0);
  buffer.targets.assign(static_cast<size_t>(tokens), kIgnoredTarget);
  buffer.document_starts.clear();
  buffer.sequences.assign(1, batch * rows_.count + row);
  size_t to = 0;
  for (const DocumentPart& part : parts) {
    const auto number = static_cast<size_t>(numbers[static_cast<size_t>(part.document)]);
    const auto count = static_cast<size_t>(part.end - part.begin);
    batches_.read(documents.pieces[number], part.begin, {buffer.inputs.data() + to, count},
                  {buffer.targets.data() + to, count});
    to += count;
  }
}

int64_t DocumentLoader::tokens(int64_t batch) {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const DocumentPiece& piece : at(batch).pieces) sum += piece.length;
  return sum;
}

int64_t DocumentLoader::counted(int64_t batch) {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const DocumentPiece& piece : at(batch).pieces)
    sum += piece.length - (piece.ends_document ? 1 : 0);
  return sum;
}

BatchPosition DocumentLoader::position(int64_t batch) {
  const std::lock_guard lock(mutex_);
  return begin_of(batch);
}

}  // namespace strait
