// Matrix tiles on processors without them: instructions that the processor refuses are decoded and
// done in its place, so that the compiled kernels run as they are.
#pragma once

#if defined(__x86_64__) && defined(__linux__)

#include <csignal>
#include <cstdint>

namespace strait::kernel {

/// While it lives, LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED and TDPBF16PS work on
/// the threads of this process. A tile instruction outside LDTILECFG .. TILERELEASE, or a
/// configuration other than eight tiles of 16 x 64 bytes, ends the process. One at a time.
class EmulatedTiles {
 public:
  EmulatedTiles();
  ~EmulatedTiles();
  EmulatedTiles(const EmulatedTiles&) = delete;
  EmulatedTiles& operator=(const EmulatedTiles&) = delete;
  /// Instructions done so far; 0 where the processor has tiles.
  static int64_t instructions();

 private:
  struct sigaction before_ = {};
};

}  // namespace strait::kernel

#endif
