// Table entries of encoding, decoding and clearing. No LibTorch; executors stand in strait/execute.
#pragma once

#include "strait/program/program.h"

namespace strait::strategy {

/// Which parts of its partition an encode or decode works on, and where their pieces lie.
enum class Pieces : int64_t {
  kOwn,     // the rank's own; in an array that is split, where that part lies
  kAll,     // all, likewise
  kGroup,   // those of its group; in a buffer of the group's pieces, by position
  kMember,  // the rank's own, likewise
};

/// Values into pieces of the op's codec. Counts numbers that are not finite in "agreed" where it is
/// given; with error feedback adds the residual before and keeps what is lost after. A codec that
/// draws reads from "step" which update it is.
extern const program::Kernel kEncode;
enum EncodeOperand : int {
  kEncodeNumbers,
  kEncodePieces,
  kEncodeAgreed,
  kEncodeResidual,
  kEncodeStep
};

/// Pieces into values.
extern const program::Kernel kDecode;
/// Pieces that stand for the same values, one per member of the group: their sum.
extern const program::Kernel kDecodeSum;
enum DecodeOperand : int { kDecodePieces, kDecodeNumbers };

enum CodingAttribute : int { kPieces };

/// Zeroes a gradient of which the blocks of this rank make a part.
extern const program::Kernel kClear;

}  // namespace strait::strategy
