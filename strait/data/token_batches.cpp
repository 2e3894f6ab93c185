#include "strait/data/token_batches.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/data/loader.h"

namespace strait {
namespace {

[[noreturn]] void refuse(const std::string& message, const char* key) {
  ErrorPlace place;
  place.key = key;
  throw UserError(message, place);
}

/// Positions at which the token that begins documents stands.
void add_marked(const TokenPart& part, int32_t mark, std::vector<int64_t>& starts) {
  std::vector<int32_t> block(65536);
  for (int64_t at = 0; at < part.tokens.size(); at += static_cast<int64_t>(block.size())) {
    const auto count = static_cast<size_t>(
        std::min<int64_t>(static_cast<int64_t>(block.size()), part.tokens.size() - at));
    part.tokens.read(at, {block.data(), count});
    for (size_t i = 0; i < count; ++i)
      if (block[i] == mark) starts.push_back(at + static_cast<int64_t>(i));
  }
}

}  // namespace

std::vector<int64_t> document_bounds(const TokenPart& part) {
  std::vector<int64_t> starts;
  if (part.document_token) {
    add_marked(part, *part.document_token, starts);
  } else {
    starts.assign(part.document_starts.begin(), part.document_starts.end());
  }
  if (starts.empty() || starts.front() > 0) starts.insert(starts.begin(), 0);
  starts.push_back(part.tokens.size());
  return starts;
}

TokenBatches::TokenBatches(const Corpus& corpus, int64_t context, int64_t batch_tokens,
                           uint64_t seed)
    : part_(corpus.training), context_(context), batch_tokens_(batch_tokens), seed_(seed) {
  ensure(context >= 1, "TokenBatches: context must be at least 1");
  if (!part_.has_documents()) {
    refuse(fmt::format("data.path: {} is one stream; batches of whole documents need "
                       "data.document_separator, or train.global_batch_size instead of "
                       "train.global_batch_tokens",
                       corpus.source),
           "data.path");
  }
  starts_ = document_bounds(part_);
  int64_t longest = 0;
  for (int64_t document = 0; document < documents(); ++document) {
    if (length(document) < 1)
      refuse(fmt::format("data.path: document {} of {} has no tokens; leave it out", document,
                         corpus.source),
             "data.path");
    longest = std::max(longest, length(document));
  }
  const int64_t least = std::min(longest, context);
  if (batch_tokens < least) {
    refuse(fmt::format("train.global_batch_tokens = {}: the longest document, cut at the context, "
                       "has {} tokens; nearest: {}",
                       batch_tokens, least, least),
           "train.global_batch_tokens");
  }
}

int64_t TokenBatches::length(int64_t number) const {
  const auto at = static_cast<size_t>(number);
  return starts_[at + 1] - starts_[at];
}

int64_t TokenBatches::attended_length() const {
  double squares = 0;
  for (int64_t document = 0; document < documents(); ++document) {
    const int64_t whole = length(document) / context_, rest = length(document) % context_;
    squares += static_cast<double>(whole * context_) * static_cast<double>(context_) +
               static_cast<double>(rest) * static_cast<double>(rest);
  }
  return static_cast<int64_t>(squares / static_cast<double>(starts_.back()));
}

bool TokenBatches::may_be_empty() const {
  int64_t single = 0, longest = 0;  // documents whose last piece has one token; of the pieces
  for (int64_t document = 0; document < documents(); ++document) {
    if ((length(document) - 1) % context_ == 0) ++single;
    longest = std::max(longest, std::min(length(document), context_));
  }
  // Two epochs may meet in a batch; more do where every document has one token.
  return single > 0 && (longest == 1 || 2 * single > batch_tokens_ - longest);
}

std::vector<DocumentPiece> TokenBatches::next(BatchPosition& position) const {
  std::vector<DocumentPiece> pieces;
  for (int64_t left = batch_tokens_;;) {
    const Permutation order(
        RandomStream(seed_, "data.documents", static_cast<uint64_t>(position.epoch)),
        static_cast<uint64_t>(documents()));
    while (position.document < documents()) {
      const auto number = static_cast<int64_t>(order(static_cast<uint64_t>(position.document)));
      const int64_t begin = position.token < length(number) ? position.token : 0;
      const int64_t size = std::min(context_, length(number) - begin);
      if (size > left) return pieces;
      const bool ends = begin + size == length(number);
      pieces.push_back({starts_[static_cast<size_t>(number)] + begin, size, ends});
      left -= size;
      position.token = ends ? 0 : begin + size;
      position.document += ends ? 1 : 0;
    }
    position = {position.epoch + 1, 0, 0};
  }
}

void TokenBatches::read(const DocumentPiece& piece, int64_t begin, std::span<int32_t> inputs,
                        std::span<int32_t> targets) const {
  const auto count = static_cast<int64_t>(inputs.size());
  ensure(targets.size() == inputs.size() && begin >= 0 && begin + count <= piece.length,
         "TokenBatches: a read beyond its piece");
  if (count == 0) return;
  part_.tokens.read(piece.start + begin, inputs);
  std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
  const bool at_end = piece.ends_document && begin + count == piece.length;
  if (at_end) {
    targets.back() = kIgnoredTarget;
  } else {
    part_.tokens.read(piece.start + begin + count, targets.last(1));
  }
}

}  // namespace strait
