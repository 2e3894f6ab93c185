// The ways to multiply matrices of bf16 and fp32, and which of them this process has.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace strait::kernel {

/// How operands are multiplied, of bf16 unless it says fp32; what a type does not have is
/// kAutomatic. All add up in fp32, in different orders.
enum class NarrowProducts : uint8_t {
  kAutomatic,   // bf16: what narrow_products() says; fp32: kWidened
  kWidened,     // by vectors of fp32, on every processor; bf16 as fp32 numbers
  kPaired,      // two depths at a time by AVX512_BF16; where it is missing: widened
  kTiles,       // by matrix tiles (AMX); without tile_access(): as kAutomatic
  kPlainTiles,  // the kernels of kTiles and, for fp32, of kSplit with the tile instructions in
                // plain C: slow, for tests
  kOneDnn,      // oneDNN, which plans per thread count; not built in: as kAutomatic
  kSplit        // fp32: by matrix tiles, in three parts of bf16 (gemm_split-inl.h); sums of two and
                // more products no less exact than kWidened's; without tile_access(): as kAutomatic
};

/// What is faster on this processor without tiles and oneDNN: kPaired on AMD's with AVX512_BF16
/// (Zen 4 and later: twice the rate of fp32), otherwise kWidened (Intel's run that instruction at
/// half the rate of fp32).
NarrowProducts narrow_products();

/// The instructions that the kernels run on here: "AVX3, bf16 in pairs" (AVX3 is AVX-512).
std::string instruction_set();

/// Whether this process may use matrix tiles.
enum class TileAccess : uint8_t {
  kGranted,
  kMissing,  // the processor has none for bf16
  kDenied    // the system refuses them: a kernel before 5.16, or a policy
};

/// kMissing without `processor_has`; else what the system answers to `ask` (true: granted).
TileAccess request_tiles(bool processor_has, const std::function<bool()>& ask);

/// The answer to this process. The system is asked once, by the first call. Thread-safe.
TileAccess tile_access();

/// "matrix tiles", "no matrix tiles", or that the system denies them.
std::string tile_text(TileAccess access);

}  // namespace strait::kernel
