// Into how many MPI messages what travels between two hosts is cut.
#pragma once

#include <cstdint>

namespace strait::comm {

inline constexpr int64_t kPieceBytes = 60 << 10;  // Open MPI sends less than 64 KiB unasked

/// A longer message waits for a handshake: the receiver must notice its beginning, then the sender
/// the answer. Where the cores that notice also compute, a link stands still for 3 to 4 ms
/// meanwhile. Pieces need no handshake, but the receiver copies them: a message of a fast link is
/// cut only from kLongSeconds on. `seconds`: what the link takes for it.
inline int64_t pieces_of(int64_t bytes, double seconds) {
  constexpr double kLongSeconds = 0.05, kShortSeconds = 0.001;
  constexpr double kSlowPiece = 50e-6;  // of 1.2 GB/s
  const int64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  const bool slow = seconds >= kShortSeconds && seconds >= kSlowPiece * static_cast<double>(pieces);
  return pieces > 1 && (slow || seconds >= kLongSeconds) ? pieces : 1;
}

}  // namespace strait::comm
