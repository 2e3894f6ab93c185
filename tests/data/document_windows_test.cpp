// How far attention reaches in windows that hold several documents, against all windows there are.
#include "strait/data/document_windows.h"
#include "tests/data/numbered_documents.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace strait {
namespace {

using testing::numbered_documents;

const std::vector<int64_t> kLengths = {5, 1, 17, 40, 3, 8, 8, 23, 2, 11};

/// Lengths of the pieces in which each token stands, with borders behind every `context` tokens
/// from `phase` on, summed.
double squares_of_pieces(const std::vector<int64_t>& lengths, int64_t context, int64_t phase) {
  double sum = 0;
  int64_t at = 0, piece = 0;
  const auto end_piece = [&] {
    sum += static_cast<double>(piece * piece);
    piece = 0;
  };
  for (const int64_t length : lengths) {
    for (int64_t token = 0; token < length; ++token) {
      if (at++ % context == phase) end_piece();
      ++piece;
    }
    end_piece();
  }
  return sum;
}

TEST(AttendedInWindows, IsTheMeanOverAllPhases) {
  const auto tokens =
      static_cast<double>(std::accumulate(kLengths.begin(), kLengths.end(), int64_t{0}));
  for (const int64_t context : {1, 2, 7, 16, 40, 100}) {
    double sum = 0;
    for (int64_t phase = 0; phase < context; ++phase)
      sum += squares_of_pieces(kLengths, context, phase);
    const double mean = sum / static_cast<double>(context) / tokens;
    EXPECT_NEAR(attended_in_windows(numbered_documents(kLengths).training, context), mean,
                1e-12 * mean)
        << context;
  }
}

TEST(AttendedInWindows, CountsDocumentsThatBeginWithATokenTooAndOneStreamWhole) {
  Corpus corpus = numbered_documents(kLengths);
  const double separated = attended_in_windows(corpus.training, 16);
  std::vector<int32_t> tokens(static_cast<size_t>(corpus.training.tokens.size()), 5);
  for (const int64_t start : corpus.training.document_starts)
    tokens[static_cast<size_t>(start)] = 9;
  corpus.training.tokens = Tokens(std::move(tokens));
  corpus.training.document_starts.clear();
  EXPECT_EQ(attended_in_windows(corpus.training, 16), 16);
  corpus.training.document_token = 9;
  EXPECT_EQ(attended_in_windows(corpus.training, 16), separated);
}

}  // namespace
}  // namespace strait
