// Dropout (Srivastava et al. 2014) whose mask is a function of a key and an element index alone, so
// that the backward and a recomputed forward draw the same mask under every layout.
#pragma once

#include <cmath>
#include <cstdint>

#include "strait/base/bfloat16.h"
#include "strait/base/random.h"

namespace strait::kernel {

/// The mask of one stream. Elements 2n and 2n + 1 share one 64-bit draw.
struct DropoutMask {
  uint64_t key = 0;        // RandomStream::key()
  uint64_t threshold = 0;  // drop when the element's 32 bits are below it
  double scale = 1.0;      // of kept elements: 1 / (1 - rate)

  DropoutMask() = default;
  DropoutMask(const RandomStream& stream, double rate)
      : key(stream.key()),
        threshold(static_cast<uint64_t>(std::llround(rate * 0x1.0p32))),
        scale(1.0 / (1.0 - rate)) {}

  bool active() const { return threshold > 0; }
  bool keeps(uint64_t element) const {
    const uint64_t draw = mix64(key ^ mix64(element >> 1)) >> (32 * (element & 1));
    return (draw & 0xffffffffU) >= threshold;
  }
};

/// out[i] = base[i] + mask(first + i) x[i]; base may be null (0). out may equal x or base.
template <class T>
struct DropoutCall {
  int64_t count = 0;
  const DropoutMask* mask = nullptr;
  uint64_t first = 0;
  const T* x = nullptr;
  const T* base = nullptr;
  T* out = nullptr;
};
template <class T>
void dropout(const DropoutCall<T>& call);

}  // namespace strait::kernel
