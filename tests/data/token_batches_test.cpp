// Batches of whole documents: every document once per epoch, at most the batch's tokens, the same
// from any position.
#include "strait/data/token_batches.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "strait/base/errors.h"
#include "strait/data/loader.h"
#include "tests/data/numbered_documents.h"

namespace strait {
namespace {

using testing::numbered_documents;

const std::vector<int64_t> kLengths = {5, 1, 17, 40, 3, 8, 8, 23, 2, 11};

TEST(TokenBatches, EveryDocumentOnceInEveryEpochCutAtTheContext) {
  const Corpus corpus = numbered_documents(kLengths);
  const TokenBatches batches(corpus, 16, 30, 3);
  BatchPosition position;
  std::map<int64_t, int> seen;  // [position in the text]
  const int64_t tokens = std::accumulate(kLengths.begin(), kLengths.end(), int64_t{0});
  int64_t read = 0;
  while (position.epoch < 3 || position.document > 0) {
    const BatchPosition before = position;
    const std::vector<DocumentPiece> pieces = batches.next(position);
    ASSERT_FALSE(pieces.empty());
    int64_t sum = 0;
    for (const DocumentPiece& piece : pieces) {
      ASSERT_LE(piece.length, 16);
      for (int64_t t = 0; t < piece.length; ++t) ++seen[piece.start + t];
      sum += piece.length;
    }
    ASSERT_LE(sum, 30);
    read += sum;
    BatchPosition after = position, resumed = before;
    EXPECT_GT(sum + batches.next(after).front().length, 30) << "the next piece would have fit";
    EXPECT_EQ(batches.next(resumed), pieces);
    EXPECT_EQ(resumed, position);
    if (position.epoch >= 3) break;
  }
  EXPECT_GE(read, 3 * tokens);
  for (int64_t t = 0; t < tokens; ++t) EXPECT_GE(seen[t], 3);
}

TEST(TokenBatches, OrdersDifferBetweenEpochsAndSeeds) {
  const Corpus corpus = numbered_documents(kLengths);
  const TokenBatches one(corpus, 64, 118, 3), other(corpus, 64, 118, 4);
  BatchPosition a, b, c{1, 0, 0};
  const auto first = one.next(a);
  EXPECT_NE(first, other.next(b));
  EXPECT_NE(first, one.next(c));
}

/// A batch ends within a document; the epoch goes on with pieces of another length.
TEST(TokenBatches, AnotherContextGoesOnWithTheNextToken) {
  const Corpus corpus = numbered_documents(kLengths);
  const TokenBatches before(corpus, 4, 6, 3);
  for (const int64_t context : {3, 16, 64}) {
    const TokenBatches after(corpus, context, 118, 3);
    BatchPosition position;
    std::map<int64_t, int> seen;  // [position in the text]
    const auto note = [&](const std::vector<DocumentPiece>& pieces) {
      for (const DocumentPiece& piece : pieces)
        for (int64_t t = 0; t < piece.length; ++t) ++seen[piece.start + t];
    };
    while (position.token == 0) note(before.next(position));
    BatchPosition rest = position;
    const std::vector<DocumentPiece> pieces = after.next(rest);
    EXPECT_EQ(rest.epoch, 1);
    note(pieces);
    for (int64_t t = 0; t < corpus.training.tokens.size(); ++t) EXPECT_GE(seen[t], 1) << t;
    EXPECT_EQ(seen[pieces.front().start], 1);
  }
}

TEST(TokenBatches, PositionsOfAnotherTextBeginADocumentOrAnEpoch) {
  const Corpus corpus = numbered_documents(kLengths);
  const TokenBatches batches(corpus, 16, 30, 3);
  BatchPosition start{2, 4}, behind_document{2, 4, 1000};
  EXPECT_EQ(batches.next(behind_document), batches.next(start));
  BatchPosition next_epoch{3}, behind_text{2, 1000, 7};
  EXPECT_EQ(batches.next(behind_text), batches.next(next_epoch));
}

/// Any run of a piece's positions, as ranks read them.
TEST(TokenBatches, TargetsFollowInsideADocumentAndStopAtItsEnd) {
  const Corpus corpus = numbered_documents(kLengths);
  const TokenBatches batches(corpus, 16, 30, 3);
  const DocumentPiece cut{23, 16, false}, end{23 + 32, 8, true};  // of the document of 40
  for (int64_t begin = 0; begin < 16; ++begin)
    for (int64_t count = 0; begin + count <= 16; ++count) {
      std::vector<int32_t> inputs(static_cast<size_t>(count)), targets(inputs.size());
      batches.read(cut, begin, inputs, targets);
      for (size_t i = 0; i < inputs.size(); ++i) {
        EXPECT_EQ(inputs[i], 23 + begin + static_cast<int64_t>(i));
        EXPECT_EQ(targets[i], inputs[i] + 1);
      }
    }
  std::vector<int32_t> inputs(8), targets(8);
  batches.read(end, 0, inputs, targets);
  EXPECT_EQ(targets[6], 62);
  EXPECT_EQ(targets[7], kIgnoredTarget);
  // Another rank reads the piece's first half, which ends nothing.
  inputs.resize(4);
  targets.resize(4);
  batches.read(end, 0, inputs, targets);
  EXPECT_EQ(targets[3], inputs[3] + 1);
}

TEST(TokenBatches, DocumentsMayBeginWithAToken) {
  Corpus corpus = numbered_documents({1});
  corpus.training.document_starts.clear();
  corpus.training.document_token = 7;
  corpus.training.tokens = Tokens(std::vector<int32_t>{7, 1, 2, 7, 3, 7, 4});
  const TokenBatches batches(corpus, 16, 16, 1);
  ASSERT_EQ(batches.documents(), 3);
  EXPECT_EQ(batches.length(0), 3);
  EXPECT_EQ(batches.length(1), 2);
  EXPECT_EQ(batches.length(2), 2);
}

/// Lengths of documents and tokens of a batch.
TEST(TokenBatches, KnowWhetherABatchMayBeEmpty) {
  const auto may_be_empty = [](const std::vector<int64_t>& lengths, int64_t context,
                               int64_t tokens) {
    const Corpus corpus = numbered_documents(lengths);
    return TokenBatches(corpus, context, tokens, 3).may_be_empty();
  };
  EXPECT_TRUE(may_be_empty({17, 16}, 16, 16)) << "one token, then a piece that finds no room";
  EXPECT_TRUE(may_be_empty({17, 16}, 16, 17)) << "with the next epoch's";
  EXPECT_FALSE(may_be_empty({17, 16}, 16, 18));
  EXPECT_FALSE(may_be_empty({18, 16}, 16, 16));
  EXPECT_TRUE(may_be_empty({1, 1, 1}, 16, 30)) << "nothing else";
}

std::string error_of(const Corpus& corpus, int64_t batch_tokens) {
  try {
    TokenBatches(corpus, 16, batch_tokens, 1);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(TokenBatches, RefusesStreamsEmptyDocumentsAndSmallBatches) {
  EXPECT_EQ(
      error_of(numbered_documents({5, 40, 3}), 15),
      "train.global_batch_tokens = 15: the longest document, cut at the context, has 16 tokens; "
      "nearest: 16");
  EXPECT_EQ(error_of(numbered_documents({5, 0, 3}), 30),
            "data.path: document 1 of documents.txt has no tokens; leave it out");
  Corpus stream = numbered_documents({50});
  stream.training.document_starts.clear();
  EXPECT_NE(error_of(stream, 30).find("data.document_separator"), std::string::npos);
}

}  // namespace
}  // namespace strait
