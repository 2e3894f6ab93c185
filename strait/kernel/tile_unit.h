// The instructions of matrix tiles: eight registers of 16 rows of 64 bytes. Kernels are templates
// over the two forms, so that plain C runs the very code that the processor's instructions run.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace strait::kernel {

inline constexpr int64_t kTileUnitRows = 16, kTileUnitBytes = 64, kNumTileUnits = 8;

/// In plain C, as Intel's manual defines TDPBF16PS: even and odd depths are summed up apart, then
/// added to each other and to the accumulator. A product of two bf16 is exact in fp32, so that
/// adding it is as good as a fused step. Subnormal numbers are kept, which the processor takes for
/// 0.
class PlainTiles {
 public:
  void begin() {}
  void end() {}
  template <int kTile>
  void zero() {
    tiles_[kTile] = {};
  }
  /// 16 rows of 64 bytes, `stride` bytes apart.
  template <int kTile>
  void load(const void* from, int64_t stride) {
    for (int64_t row = 0; row < kTileUnitRows; ++row)
      std::memcpy(&tiles_[kTile][row], static_cast<const uint8_t*>(from) + row * stride,
                  kTileUnitBytes);
  }
  template <int kTile>
  void store(float* to, int64_t stride) const {
    for (int64_t row = 0; row < kTileUnitRows; ++row)
      std::memcpy(reinterpret_cast<uint8_t*>(to) + row * stride, &tiles_[kTile][row],
                  kTileUnitBytes);
  }
  /// sum[m, n] += over pairs p of a[m, p] . b[p, n], fp32 += bf16 bf16.
  template <int kSum, int kA, int kB>
  void dot() {
    for (size_t m = 0; m < kTileUnitRows; ++m) {
      float even[kTileUnitRows] = {}, odd[kTileUnitRows] = {};
      for (size_t p = 0; p < kTileUnitRows; ++p) {
        const uint32_t x = tiles_[kA][m][p];
        for (size_t n = 0; n < kTileUnitRows; ++n) {
          const uint32_t y = tiles_[kB][p][n];
          even[n] += low(x) * low(y);
          odd[n] += high(x) * high(y);
        }
      }
      for (size_t n = 0; n < kTileUnitRows; ++n) {
        uint32_t& sum = tiles_[kSum][m][n];
        sum = std::bit_cast<uint32_t>(std::bit_cast<float>(sum) + (even[n] + odd[n]));
      }
    }
  }

 private:
  using Tile = std::array<std::array<uint32_t, 16>, 16>;
  static float low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
  static float high(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000U); }

  std::array<Tile, kNumTileUnits> tiles_{};
};

#if defined(__x86_64__)
/// The processor's (AMX). Between begin and end the registers of the calling thread are configured;
/// without permission (products.h) begin ends the process.
class MatrixTiles {
 public:
  void begin() {
    struct alignas(64) Configuration {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } configuration;
    for (int64_t tile = 0; tile < kNumTileUnits; ++tile) {
      configuration.row_bytes[tile] = kTileUnitBytes;
      configuration.rows[tile] = kTileUnitRows;
    }
    asm volatile("ldtilecfg %0" ::"m"(configuration));
  }
  void end() { asm volatile("tilerelease"); }
  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  void store(float* to, int64_t stride) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kSum, int kA, int kB>
  void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  }
};
#endif

}  // namespace strait::kernel
