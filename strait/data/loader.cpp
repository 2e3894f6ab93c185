#include "strait/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numbers>

#include "strait/base/errors.h"
#include "strait/base/random.h"

namespace strait {
namespace {

void resize(BatchBuffer& batch, int64_t count, int64_t context, bool documents) {
  const auto size = static_cast<size_t>(count * context);
  batch.inputs.resize(size);
  batch.targets.resize(size);
  batch.document_starts.resize(documents ? size : 0);
  batch.sequences.resize(static_cast<size_t>(count));
}

/// Calls `action` with each place 1 .. targets.size(), counted from `start`, where a document
/// begins.
template <class Action>
void for_each_start(const TokenPart& part, int64_t start, std::span<const int32_t> targets,
                    Action action) {
  const auto count = static_cast<int64_t>(targets.size());
  if (part.document_token) {
    for (int64_t position = 1; position <= count; ++position)
      if (targets[static_cast<size_t>(position - 1)] == *part.document_token) action(position);
    return;
  }
  const auto& documents = part.document_starts;
  for (auto next = std::upper_bound(documents.begin(), documents.end(), start);
       next != documents.end() && *next <= start + count; ++next)
    action(*next - start);
}

/// Tokens that a part must have behind a window: the target of its last token.
int64_t tokens_behind(const TokenPart& part) { return part.record > 0 ? 0 : 1; }

/// A record and nothing else; behind the last one, padding.
void fill_record(const TokenPart& part, int64_t start, int64_t context, int64_t row,
                 BatchBuffer& batch) {
  int32_t* inputs = batch.inputs.data() + row * context;
  int32_t* targets = batch.targets.data() + row * context;
  if (start + context > part.tokens.size()) {
    std::fill(inputs, inputs + context, 0);
    std::fill(targets, targets + context, kIgnoredTarget);
    return;
  }
  part.tokens.read(start, {inputs, static_cast<size_t>(context)});
  std::copy_n(inputs, context, targets);
}

/// Row `row`: inputs from `start` on; what lies behind the last token is padding.
void fill_row(const TokenPart& part, int64_t start, int64_t context, int64_t row,
              BatchBuffer& batch) {
  if (part.record > 0) return fill_record(part, start, context, row, batch);
  const int64_t count = std::clamp<int64_t>(part.tokens.size() - 1 - start, 0, context);
  int32_t* inputs = batch.inputs.data() + row * context;
  int32_t* targets = batch.targets.data() + row * context;
  if (count > 0) {
    part.tokens.read(start + 1, {targets, static_cast<size_t>(count)});
    part.tokens.read(start, {inputs, 1});
    std::copy_n(targets, count - 1, inputs + 1);
  }
  std::fill(inputs + count, inputs + context, 0);
  std::fill(targets + count, targets + context, kIgnoredTarget);
  if (batch.document_starts.empty()) return;

  int32_t* starts = batch.document_starts.data() + row * context;
  std::fill(starts, starts + context, 0);
  for_each_start(part, start, {targets, static_cast<size_t>(count)}, [&](int64_t position) {
    targets[position - 1] = kIgnoredTarget;
    std::fill(starts + std::min(position, context), starts + context,
              static_cast<int32_t>(position));
  });
}

}  // namespace

SequenceLoader::SequenceLoader(const Corpus& corpus, int64_t context, uint64_t seed)
    : part_(corpus.training), context_(context), seed_(seed) {
  ensure(context >= 1, "SequenceLoader: context must be at least 1");
  const int64_t targets = part_.tokens.size() - tokens_behind(part_);
  ErrorPlace place;
  place.file = corpus.source;
  place.key = "data.path";
  if (part_.record > 0 && part_.record != context)
    throw UserError(fmt::format("data.path: {} has records of {} tokens, and a sequence has {}; "
                                "the nearest valid model.shape.context is {}",
                                corpus.source, part_.record, context, part_.record),
                    place);
  if (targets < 1)
    throw UserError(
        fmt::format("data.path: the training part of {} has {} tokens, but the shortest "
                    "sequence needs 2; use a longer text",
                    corpus.source, part_.tokens.size()),
        place);
  if (targets < context) {
    throw UserError(
        fmt::format("data.path: the training part of {} has {} tokens, but one sequence "
                    "needs {} (context {} and the token after it); use a longer text, or "
                    "model.shape.context <= {}",
                    corpus.source, targets + 1, context + 1, context, targets),
        place);
  }
  if (part_.record > 0) {
    windows_ = targets / context;
    phases_ = 1;
    return;
  }
  // With `context` phases the same number of windows fits for each of them, unless the text is very
  // short.
  const bool all_phases = targets + 1 >= 2 * context;
  windows_ = all_phases ? (targets + 1) / context - 1 : 1;
  phases_ = all_phases ? context : targets - context + 1;
}

int64_t SequenceLoader::window_start(int64_t number) const {
  ensure(number >= 0, "SequenceLoader: a sequence number is negative");
  const auto epoch = static_cast<uint64_t>(number / windows_);
  const RandomStream phase(seed_, "data.phase");
  return window_of(epoch, number % windows_) * context_ +
         static_cast<int64_t>(phase.below(epoch, static_cast<uint64_t>(phases_)));
}

/// Strata are as long as each other but for one window; those that have one more give it in a last
/// round.
int64_t SequenceLoader::window_of(uint64_t epoch, int64_t place) const {
  const int64_t rounds = windows_ / kStrata, rest = windows_ % kStrata;
  const auto begin_of = [&](int64_t stratum) {
    return stratum * rounds + stratum * rest / kStrata;
  };
  const RandomStream stream(seed_, "data.order", epoch);
  const int64_t round = place / kStrata;
  const Permutation strata(RandomStream(stream.key(), "strata", static_cast<uint64_t>(round)),
                           static_cast<uint64_t>(round < rounds ? kStrata : rest));
  auto stratum = static_cast<int64_t>(strata(static_cast<uint64_t>(place % kStrata)));
  if (round == rounds) stratum = ((stratum + 1) * kStrata + rest - 1) / rest - 1;
  const int64_t begin = begin_of(stratum);
  const Permutation inside(RandomStream(stream.key(), "inside", static_cast<uint64_t>(stratum)),
                           static_cast<uint64_t>(begin_of(stratum + 1) - begin));
  return begin + static_cast<int64_t>(inside(static_cast<uint64_t>(round)));
}

void SequenceLoader::fill(int64_t first, int64_t count, BatchBuffer& batch) const {
  resize(batch, count, context_, part_.has_documents());
  for (int64_t row = 0; row < count; ++row) {
    batch.sequences[row] = first + row;
    fill_row(part_, window_start(first + row), context_, row, batch);
  }
}

void SequenceLoader::fill(std::span<const int64_t> numbers, BatchBuffer& batch) const {
  const auto count = static_cast<int64_t>(numbers.size());
  resize(batch, count, context_, part_.has_documents());
  for (int64_t row = 0; row < count; ++row) {
    batch.sequences[row] = numbers[row];
    fill_row(part_, window_start(numbers[row]), context_, row, batch);
  }
}

int64_t SequenceLoader::counted(int64_t first, int64_t count) const {
  int64_t counted = count * context_;
  if (!part_.has_documents() || part_.record > 0) return counted;
  std::vector<int32_t> targets(static_cast<size_t>(context_));
  for (int64_t number = first; number < first + count; ++number) {
    const int64_t start = window_start(number);
    if (part_.document_token) part_.tokens.read(start + 1, targets);
    for_each_start(part_, start, targets, [&](int64_t) { --counted; });
  }
  return counted;
}

double bits_per_byte(double mean_loss, const ScoredText& text) {
  if (text.bytes <= 0) return std::numeric_limits<double>::quiet_NaN();
  return mean_loss * static_cast<double>(text.tokens) /
         (static_cast<double>(text.bytes) * std::numbers::ln2);
}

ValidationWindows::ValidationWindows(const Corpus& corpus, int64_t context)
    : part_(corpus.validation), tokenizer_(corpus.tokenizer.get()), context_(context) {
  ensure(context >= 1, "ValidationWindows: context must be at least 1");
  const int64_t targets = part_.tokens.size() - tokens_behind(part_);
  windows_ = targets < 1 ? 0 : (targets + context - 1) / context;
}

void ValidationWindows::fill(int64_t first, int64_t count, BatchBuffer& batch) const {
  resize(batch, count, context_, part_.has_documents());
  const auto size = part_.tokens.size();
  for (int64_t row = 0; row < count; ++row) {
    const int64_t window = first + row;
    batch.sequences[row] = window;
    fill_row(part_, window < windows_ ? window * context_ : size, context_, row, batch);
  }
}

ScoredText ValidationWindows::scored(int64_t count) const {
  ScoredText whole{part_.scored_tokens, part_.scored_bytes}, some;
  if (count >= windows_ || whole.bytes <= 0 || tokenizer_ == nullptr) return whole;
  BatchBuffer window;
  for (int64_t number = 0; number < count; ++number) {
    fill(number, 1, window);
    for (const int32_t target : window.targets) {
      if (target == kIgnoredTarget) continue;
      ++some.tokens;  // the end of a document stands for no text
      if (target != tokenizer_->end_of_document())
        some.bytes += static_cast<int64_t>(tokenizer_->token_bytes(target).size());
    }
  }
  return some;
}

}  // namespace strait
