// How fast this machine moves bytes from one buffer to another: the bound of everything that only
// moves bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/measure/rank_team.h"

namespace strait::measure {

/// Source and destination of one rank each, filled by the rank's own thread (so that the pages lie
/// near its core).
class CopyBuffers {
 public:
  /// 2 * ranks * bytes of memory. Precondition: bytes >= 1.
  CopyBuffers(RankTeam& team, int64_t bytes);
  ~CopyBuffers();
  CopyBuffers(const CopyBuffers&) = delete;
  CopyBuffers& operator=(const CopyBuffers&) = delete;

  /// All ranks copy at the same time, `repeats` times; seconds of one copy, until the last rank is
  /// done. `streaming`: stores that bypass the caches.
  double copy(bool streaming, int64_t repeats = 1);
  /// Seconds of the faster of the two copies.
  double best_copy(int64_t repeats = 1);
  /// True when every destination equals its source. Both copies are seen to work before they are
  /// timed.
  bool equal() const;
  /// Bytes read plus bytes written by one copy(), over all ranks.
  double moved_bytes() const;

 private:
  RankTeam& team_;
  int64_t bytes_;
  std::vector<uint8_t*> sources_, destinations_;
};

/// Bytes read plus bytes written per second, summed over all ranks that copy at the same time.
/// Medians.
struct CopyRates {
  double memcpy_bytes_per_second = 0.0;
  double streaming_bytes_per_second = 0.0;
  double best() const;
};

/// Both copies, verified and then timed, interleaved, at least 5 runs. InternalError when a copy
/// differs.
CopyRates measure_copy(RankTeam& team, int64_t bytes, int64_t runs = 7);

/// Copies `bytes` bytes past the caches. Buffers are 64-byte aligned and do not overlap. Ends with
/// a store fence.
void streaming_copy(const void* source, void* destination, int64_t bytes);

}  // namespace strait::measure
