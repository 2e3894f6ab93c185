// Table entries of what a model computes: batches, blocks, loss. No LibTorch; executors stand in
// strait/execute.
#pragma once

#include "strait/program/program.h"
#include "strait/shape/ends.h"
#include "strait/shape/segment.h"
#include "strait/shape/unet_parts.h"

namespace strait::draft {

/// Operands of the kernels that work on blocks. Where ranks of x and y share a block, they
/// have the same batch: what is added to kAgreed, the first of them adds alone.
enum BlockOperand : int {
  kTokens,      // int32: inputs, targets and, with documents, document starts; [batch, tokens] each
  kSequences,   // int64, host: number of each sequence in the run
  kStepValues,  // strategy::StepValue
  kWeights,     // flat unit, whole
  kInput,       // activation entering
  kOutput,      // activation leaving
  kSaved,       // saved bundle
  kOutputGradient,  // gradient entering a backward pass
  kInputGradient,   // gradient leaving a backward pass
  kGradient,        // gradient of the unit
  kAgreed,          // strategy::Agreed: losses are added
  kCache,           // key/value cache
  kPosition,        // int64, host: tokens already cached
  kKeptUp,          // BlockValue::kUp, where the forward keeps it beside the saved bundle
  kBundle,          // what backward_input hands to backward_weight, but for
  kDeferred,        // what it hands to the part of it that may wait (deferred_values in segment.h)
  kBlockValues,     // and on: what passes between ranges of segments, by BlockValue
  kEndValues = kBlockValues + kNumBlockValues,    // and on: those of shared ends, by EndValue
  kUnetValues = kEndValues + kNumEndValues,       // and on: those of shared blocks of a U-Net
  kUnetGradients = kUnetValues + kNumUnetValues,  // and on: their gradients
  kNumBlockOperands = kUnetGradients + kNumUnetValues
};

constexpr int block_slot(BlockValue value) { return kBlockValues + static_cast<int>(value); }

/// Attributes of the kernels that work on blocks.
enum BlockAttribute : int {
  kBlock,           // index: of the block in the model's chain
  kSegments,        // range: pieces of the fused block, merged into this op; of the kernels that
                    // work on ranges of segments: segments
  kBatch,           // integer: sequences
  kLength,          // integer: tokens of each
  kTraining,        // integer: 1 = dropout acts
  kFlops,           // number
  kAttentionFlops,  // number: of these
  kWorkspace,       // integer: bytes
  kLibraryBytes,    // integer: the fields of LibraryWork
  kPassedBytes,     // number
  kActivations,     // number
  kCalls,           // number
  kCapacity,        // integer: tokens that the cache holds
  kInFlight,        // index: the micro-batch, where a rank has several in flight; else below 0
  kRound,           // integer: of a ring
  kGroup,           // integer: of the rank's groups; kernels of groups alone have it
  kPairs,           // integer: sequence::OwnPairs, of the backward of a round of a group
  kRingPairs,       // the same, of a ring
};
/// Range: of the rows. Kernels of rows have it in the place of kRound.
inline constexpr int kRows = kRound;
/// Integers: the fields of sequence::KeyPart. Kernels of rings have them in the place of kGroup.
inline constexpr int kPart = kGroup, kParts = kPairs;

/// Block; where it writes kSaved it keeps what the backward pass needs.
extern const program::Kernel kForward;
/// Head: loss, gradient of its input and of its unit.
extern const program::Kernel kForwardBackward;
/// Head: loss alone.
extern const program::Kernel kForwardLoss;
/// Block behind a key/value cache.
extern const program::Kernel kForwardCached;
/// Block: gradients of input and weights.
extern const program::Kernel kBackward;

/// The same for a range of segments of a transformer block (shape/segment.h): its forward, the
/// gradients of its inputs, and behind them those of its weights. Operands: segment_ops.h.
extern const program::Kernel kForwardSegments;
extern const program::Kernel kBackwardInput;
extern const program::Kernel kBackwardWeight;

/// The first two for a range of one segment, a product, and some rows of the micro-batch (kRows). A
/// joined value (program::ValueArray) that they write is the part with these rows; of all other
/// values they touch these rows alone.
extern const program::Kernel kForwardRows;
extern const program::Kernel kBackwardInputRows;

/// Where rows are split: what the norm before qkv or up (kSegments: the segment of the norm) has
/// made of a rank's rows, again.
extern const program::Kernel kNormalizeAgain;

/// Keys and values of this rank's tokens, or of those of a part, one row behind the other (kKeys),
/// from what the forward of segment qkv_add left, saved or as a value of its own.
extern const program::Kernel kPackKeys;
/// What segment attention does, and its backward, with the keys of one rank at a time: round
/// kRound, with those of the rank so many positions before (kKeys; in round 0 the rank's own, which
/// are where pack_keys finds them). The backward makes kKeyGradient of these keys.
extern const program::Kernel kAttendRound;
extern const program::Kernel kAttendRoundInput;
/// kKeyGradient += kGatheredKeyGradient, of a part; behind the last round the former is of all.
extern const program::Kernel kAddKeyGradient;
/// The four above for one group of the documents that a plan spreads over ranks: kRound of kGroup.
/// kAddGroupGradient adds what has come behind round kRound.
extern const program::Kernel kPackGroup;
extern const program::Kernel kAttendGroup;
extern const program::Kernel kAttendGroupInput;
extern const program::Kernel kAddGroupGradient;
/// Attention by heads (shape/segment.h).
const program::Kernel& head_kernel(HeadStep step);

/// What moves rows between attention and linear modules: kRows of some value of a block. kLength is
/// that of attention.
const program::Kernel& remap_kernel(RemapStep step);

/// The steps of an embedding and a head that ranks share (shape/ends.h).
const program::Kernel& end_kernel(EndStep step);
inline int end_slot(EndValue value) { return kEndValues + static_cast<int>(value); }

/// An op of a block of a U-Net that ranks share (shape/unet_parts.h): it makes a value, or from its
/// gradient those of what it is made of; of the last block's output, the loss.
const program::Kernel& unet_kernel(UnetValue value, bool backward);
constexpr int unet_slot(UnetValue value, bool gradient) {
  return (gradient ? kUnetGradients : kUnetValues) + static_cast<int>(value);
}

/// Fetches the tokens of a micro-batch: kTokens and kSequences, and adds to kAgreed how many
/// targets count, unless kCounted is 0: where others hold the same batch and count it.
extern const program::Kernel kLoad;
enum LoadAttribute : int { kMicroBatch, kLoadBatch, kLoadLength, kCounted };

/// An op of a block kernel over all segments of a block; operands and costs are the caller's to
/// add.
program::Op block_op(const program::Kernel& kernel, int64_t block,
                     const program::IntegerRange& segments);

/// Floating-point operations of a block kernel's op, and those of attention among them.
void set_flops(program::Op& op, double flops, double attention_flops = 0);
/// What the op leaves to a library.
void set_library(program::Op& op, const LibraryWork& work);
/// Leaves this part of both.
void scale_flops(program::Op& op, double part);
/// Numbers of weights that the products of such an op pass over, told from their operations and
/// rows; of a convolution, as if its rows were those of the whole image.
double weights_of(const program::Op& op);

/// Appends an operand: to the reads, or to the writes unless it is only read.
void add_operand(program::Op& op, int array, const program::Index& index, program::Access access,
                 int slot);

}  // namespace strait::draft
