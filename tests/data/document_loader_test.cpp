// Whole documents in rows of one length: nothing lost, nothing twice, the same for any number of
// rows.
#include "strait/data/document_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "tests/data/numbered_documents.h"

namespace strait {
namespace {

std::vector<int64_t> random_lengths(const RandomStream& stream, uint64_t count, uint64_t longest) {
  std::vector<int64_t> lengths;
  for (uint64_t i = 0; i < count; ++i)
    lengths.push_back(1 + static_cast<int64_t>(stream.below(i, longest)));
  return lengths;
}

using testing::numbered_documents;

TEST(PackedDocuments, EveryDocumentOnceAndNoRowOverItsCapacity) {
  const RandomStream stream(5, "packing");
  for (uint64_t trial = 0; trial < 1000; ++trial) {
    const RandomStream draws(stream.key(), "trial", trial);
    const std::vector<int64_t> lengths =
        random_lengths(draws, 1 + draws.below(1u << 20, 200), 1 + draws.below(2u << 20, 90));
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const int64_t longest = std::ranges::max(lengths);
    const auto rows = static_cast<int64_t>(1 + draws.below(3u << 20, 12));
    // What list scheduling needs at most.
    const int64_t capacity = std::max(longest, (tokens - longest + rows - 1) / rows + longest);
    std::vector<int> seen(lengths.size());
    const auto packed = pack_documents(lengths, rows, capacity);
    ASSERT_EQ(static_cast<int64_t>(packed.size()), rows);
    for (const std::vector<int32_t>& row : packed) {
      int64_t sum = 0;
      for (const int32_t document : row) {
        ++seen[static_cast<size_t>(document)];
        sum += lengths[static_cast<size_t>(document)];
      }
      ASSERT_LE(sum, capacity) << "trial " << trial;
      ASSERT_TRUE(std::ranges::is_sorted(row));
    }
    ASSERT_EQ(std::ranges::count(seen, 1), std::ssize(seen)) << "trial " << trial;
  }
}

TEST(PackedDocuments, AttentionIsBalancedWhereThereIsRoom) {
  // Squares: 64 against 4 x 16.
  const auto rows = pack_documents(std::vector<int64_t>{8, 4, 4, 4, 4}, 2, 16);
  EXPECT_EQ(rows, (std::vector<std::vector<int32_t>>{{0}, {1, 2, 3, 4}}));
}

TEST(PackedDocuments, TightRowsAreFilledFirstFit) {
  // By squares and by tokens the two of 3 go to different rows, and the last 2 finds no room.
  const auto rows = pack_documents(std::vector<int64_t>{3, 3, 2, 2, 2}, 2, 6);
  EXPECT_EQ(rows, (std::vector<std::vector<int32_t>>{{0, 1}, {2, 3, 4}}));
  EXPECT_THROW(pack_documents(std::vector<int64_t>{3, 3, 3}, 2, 5), InternalError);
}

/// Tokens of a batch by position in the text, and what is predicted there.
std::map<int32_t, int32_t> contents(DocumentLoader& loader, int64_t batch, int64_t rows,
                                    int64_t tokens) {
  std::map<int32_t, int32_t> found;
  BatchBuffer buffer;
  loader.fill(batch, 0, rows, buffer);
  for (int64_t at = 0; at < rows * tokens; ++at) {
    const auto i = static_cast<size_t>(at);
    const int64_t place = at % tokens, start = buffer.document_starts[i];
    EXPECT_LE(start, place);
    const bool padding = buffer.inputs[i] == 0 && start == place && buffer.targets[i] < 0;
    if (padding) continue;
    // Inside a document positions in the text follow each other.
    EXPECT_EQ(buffer.inputs[i], buffer.inputs[static_cast<size_t>(at - place + start)] +
                                    static_cast<int32_t>(place - start));
    EXPECT_TRUE(found.emplace(buffer.inputs[i], buffer.targets[i]).second);
  }
  return found;
}

TEST(DocumentLoader, ABatchIsTheSameInAnyNumberOfRows) {
  const RandomStream stream(3, "lengths");
  const Corpus corpus = numbered_documents(random_lengths(stream, 300, 40));
  const TokenBatches batches(corpus, 32, 256, 9);
  DocumentLoader one(batches, {1, 256, 256}), four(batches, {4, 90, 90}),
      many(batches, {16, 32, 32});
  for (const int64_t batch : {0, 5, 2, 40}) {  // the fortieth stands in a later epoch
    const auto expected = contents(one, batch, 1, 256);
    EXPECT_EQ(contents(four, batch, 4, 90), expected);
    EXPECT_EQ(contents(many, batch, 16, 32), expected);
    EXPECT_EQ(four.tokens(batch), one.tokens(batch));
    EXPECT_EQ(four.counted(batch),
              std::ranges::count_if(expected, [](const auto& token) { return token.second >= 0; }));
  }
}

TEST(DocumentLoader, GoesOnFromAPosition) {
  const RandomStream stream(3, "lengths");
  const Corpus corpus = numbered_documents(random_lengths(stream, 300, 40));
  const TokenBatches batches(corpus, 32, 256, 9);
  DocumentLoader whole(batches, {2, 160, 160});
  DocumentLoader rest(batches, {3, 120, 120}, 7, whole.position(7));
  for (const int64_t batch : {7, 12, 9})
    EXPECT_EQ(contents(rest, batch, 3, 120), contents(whole, batch, 2, 160));
  EXPECT_EQ(rest.position(20), whole.position(20));
  EXPECT_THROW(rest.tokens(6), InternalError);
}

}  // namespace
}  // namespace strait
