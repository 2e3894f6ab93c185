// What a rank does besides products while it trains, to be timed: whole blocks of a model, and
// codecs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/codec/codec.h"
#include "strait/config/run.h"
#include "strait/kernel/products.h"
#include "strait/train/solo_step.h"

namespace strait::measure {

/// A model of one block and the tokens that it is timed with.
struct BlockCase {
  Run run;  // model and batch, on one rank
  int64_t vocabulary = 256;
};

/// Of a GPT: `width` of the block, at least 16; 512 tokens, or fewer where the block is narrow.
BlockCase block_of_width(int64_t width);

/// Of the model of `run` with as many tokens as one of its `ranks` has in a micro-step, in
/// sequences of at most 1,024. UserError where the batch does not fit the ranks, and where the
/// model is a chain of modules.
BlockCase block_of_run(const Run& run, int64_t ranks);

/// Of `run` where there is one, else of `width`.
BlockCase block_of(const std::optional<Run>& run, int64_t ranks, int64_t width);

/// The same block with a quarter of the tokens, or as few as can be: fewer sequences, shorter ones
/// where there is but one. Nothing where it cannot have fewer.
std::optional<BlockCase> with_fewer_tokens(const BlockCase& block);

/// "gpt2, 512 wide, 4 x 128 tokens".
std::string description(const BlockCase& block);

/// Steps of a model of one block on one rank. Not thread-safe; one thread makes, runs and destroys
/// it.
class ModelWork {
 public:
  /// In fp32 or bf16, whatever the case says; bf16 by `products`.
  ModelWork(BlockCase block, Dtype dtype, int64_t threads,
            kernel::NarrowProducts products = kernel::NarrowProducts::kAutomatic);
  /// One step. InternalError when its loss is not finite.
  void run();
  /// Of a step: floating-point operations, those of attention among them, numbers of weights that
  /// products pass over, and bytes that its update reads and writes.
  double flops() const { return flops_; }
  double attention_flops() const { return attention_flops_; }
  double weights() const { return weights_; }
  double update_bytes() const { return update_bytes_; }

 private:
  std::unique_ptr<train::SoloStep> step_;
  double flops_ = 0, attention_flops_ = 0, weights_ = 0, update_bytes_ = 0;
};

/// Encodes and decodes a vector of fp32 in the codecs of the presets. Not thread-safe.
class CodecWork {
 public:
  explicit CodecWork(int64_t elements);
  /// Each codec there and back, on one thread. InternalError when what comes back is further off
  /// than a level.
  void run();
  /// Bytes read and written by a run: numbers as fp32, and pieces.
  double bytes() const { return bytes_; }

 private:
  std::vector<float> numbers_, back_;
  std::vector<codec::CodecSpec> codecs_;
  std::vector<std::vector<uint8_t>> pieces_;  // by codec
  double bytes_ = 0;
};

/// Of the rest of a step, which is taken off its seconds; and what products reach at best.
struct OtherRates {
  double memory_bytes_per_second = 0;  // of the update
  double attention_flops_per_second = 0;
  double product_flops_per_second = 0;
};
struct TimedBlock {
  const ModelWork* work = nullptr;  // null = not timed
  double seconds = 0;
};
/// Of whole blocks without their attention.
struct BlockRates {
  double flops_per_second = 0;
  double weights_per_second = 0;  // 0 = at no cost
};
/// What a block of many tokens takes is told apart by one of few: seconds that follow the tokens,
/// and those of the weights, which do not. Both together are what the block of many takes; where
/// `few` is not timed, or was no slower by the token, all of it follows the tokens.
BlockRates block_rates(const TimedBlock& many, const TimedBlock& few, const OtherRates& others);

}  // namespace strait::measure
