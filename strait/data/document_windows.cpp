#include "strait/data/document_windows.h"

#include <algorithm>
#include <vector>

namespace strait {
namespace {

constexpr int64_t kSampledTokens = 1 << 24, kBlockTokens = 1 << 16;

/// Adds up, over the tokens of documents, how long the piece is in which each stands. All phases
/// being as likely, a border stands behind a token with probability 1 / T, which leaves
/// l^2 - (l^3 - l) / (3 T) of the l^2 of a document of l <= T tokens; each further token adds T.
class Pieces {
 public:
  explicit Pieces(int64_t context) : most_(static_cast<double>(context)) {}
  void add(int64_t tokens) {
    const auto length = static_cast<double>(tokens), within = std::min(length, most_);
    sum_ += within * within - (within * within * within - within) / (3 * most_) +
            (length - within) * most_;
    tokens_ += length;
  }
  double mean() const { return tokens_ > 0 ? sum_ / tokens_ : most_; }

 private:
  double most_, sum_ = 0, tokens_ = 0;
};

/// Documents that begin with the token `mark`.
void add_marked(const TokenPart& part, int32_t mark, Pieces& pieces) {
  const int64_t end = std::min(part.tokens.size(), kSampledTokens);
  std::vector<int32_t> block(static_cast<size_t>(kBlockTokens));
  int64_t begin = 0;  // of a document
  for (int64_t at = 0; at < end; at += kBlockTokens) {
    const int64_t count = std::min(kBlockTokens, end - at);
    part.tokens.read(at, {block.data(), static_cast<size_t>(count)});
    for (int64_t i = 0; i < count; ++i)
      if (block[static_cast<size_t>(i)] == mark) {
        pieces.add(at + i - begin);
        begin = at + i;
      }
  }
  pieces.add(end - begin);
}

}  // namespace

double attended_in_windows(const TokenPart& part, int64_t context) {
  Pieces pieces(context);
  if (part.document_token) {
    add_marked(part, *part.document_token, pieces);
  } else if (!part.document_starts.empty()) {
    for (size_t at = 1; at < part.document_starts.size(); ++at)
      pieces.add(part.document_starts[at] - part.document_starts[at - 1]);
    pieces.add(part.tokens.size() - part.document_starts.back());
  }
  return pieces.mean();
}

}  // namespace strait
