// From tokens to batches: which sequence holds what, for any number of ranks, and the validation
// windows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strait/data/corpus.h"

namespace strait {

/// Target of a position that is not scored.
inline constexpr int32_t kIgnoredTarget = -1;

/// B sequences of T positions, row-major. Reused between calls: nothing is allocated while B * T
/// does not grow.
struct BatchBuffer {
  std::vector<int32_t> inputs;   // [B, T] tokens
  std::vector<int32_t> targets;  // [B, T] the token that follows, or kIgnoredTarget
  /// [B, T] the first position of the row that belongs to the same document; empty for one stream.
  /// A position attends to [document_starts, itself].
  std::vector<int32_t> document_starts;
  /// Where ranks share sequences: [B, T of all of them], the same of whole sequences.
  std::vector<int32_t> row_starts;
  std::vector<int64_t>
      sequences;  // [B] the numbers of the sequences (of the windows, for validation)
};

/// Which sequences of a step one rank works on: with the batch cut into `ranks` equal runs, run
/// `rank`, of which micro-step m takes `micro_batch` from m * micro_batch on.
struct BatchShare {
  int64_t global_batch = 1;
  int64_t ranks = 1;  // that split the batch; divides global_batch
  int64_t rank = 0;
  int64_t micro_batch = 1;  // divides global_batch / ranks

  int64_t micro_steps() const { return global_batch / ranks / micro_batch; }
  /// Number of the first of the `micro_batch` consecutive sequences of a micro-step.
  int64_t first_sequence(int64_t step, int64_t micro_step) const {
    return step * global_batch + rank * (global_batch / ranks) + micro_step * micro_batch;
  }
};

/// Training sequences. Sequence k >= 0 counts over the whole run (step * global batch + index in
/// the batch) and is a pure function of (seed, tokens, context, k): ranks and resumed runs need no
/// state. An epoch is windows_per_epoch() consecutive sequences: the windows of T + 1 tokens at
/// stride T from a random phase (so that borders differ between epochs), in random order, each
/// once. At most 2T - 1 tokens at the two ends are left out of an epoch.
///
/// Windows run across documents. The target of a document's last token is kIgnoredTarget.
///
/// Of a part of records (TokenPart::record) the windows are the records, in random order, and
/// targets the tokens themselves.
class SequenceLoader {
 public:
  /// `corpus` must outlive the loader. UserError (key data.path) naming the tokens and the context
  /// when the training part has fewer than context + 1 tokens, or no record as long as the context.
  SequenceLoader(const Corpus& corpus, int64_t context, uint64_t seed);

  int64_t context() const { return context_; }
  int64_t windows_per_epoch() const { return windows_; }
  /// Position in the training tokens at which sequence `number` begins. O(1).
  int64_t window_start(int64_t number) const;
  /// Parts of the text that take turns, so that every batch is drawn from all over it: a stratified
  /// sample has less variance than a plain one.
  static constexpr int64_t kStrata = 48;

  /// Writes the sequences `first` .. `first + count - 1`. Thread-safe; O(count * T).
  void fill(int64_t first, int64_t count, BatchBuffer& batch) const;
  /// The same for any list of numbers.
  void fill(std::span<const int64_t> numbers, BatchBuffer& batch) const;
  /// Targets of the sequences `first` .. `first + count - 1` that are scored. Thread-safe;
  /// O(count + documents in them), or, where documents begin with a token, O(count * T).
  int64_t counted(int64_t first, int64_t count) const;

 private:
  /// The window at a place of an epoch: a bijection of 0 .. windows_per_epoch() - 1.
  int64_t window_of(uint64_t epoch, int64_t place) const;

  const TokenPart& part_;
  int64_t context_;
  uint64_t seed_;
  int64_t windows_;
  int64_t phases_;  // how many phases are possible
};

/// What windows score.
struct ScoredText {
  int64_t tokens = 0;
  int64_t bytes = 0;  // 0 = not known
};

/// Bits per byte of text from the mean loss in nats over its tokens; NaN where no bytes are known.
double bits_per_byte(double mean_loss, const ScoredText& text);

/// The validation part once, in order: window i has the targets of positions i * T + 1 .. (i + 1) *
/// T, so each token but the first is a target once. Positions behind the end have input 0 and
/// kIgnoredTarget, as has a whole window behind the last, so that ranks may share the windows
/// unevenly. Of a part of records the windows are the records.
class ValidationWindows {
 public:
  /// `corpus` must outlive the object; context >= 1.
  ValidationWindows(const Corpus& corpus, int64_t context);

  int64_t context() const { return context_; }
  /// 0 when the part has fewer than two tokens.
  int64_t windows() const { return windows_; }
  /// Writes the windows `first` .. `first + count - 1`. Thread-safe; O(count * T).
  void fill(int64_t first, int64_t count, BatchBuffer& batch) const;
  /// What the first `count` windows score. O(1) for all of them, else O(count * T).
  ScoredText scored(int64_t count) const;

 private:
  const TokenPart& part_;
  const Tokenizer* tokenizer_;  // may be null
  int64_t context_;
  int64_t windows_;
};

}  // namespace strait
