// Codecs on one core against the rate at which it copies memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/bench/bench.h"

namespace strait::measure {

struct CodecCase {
  std::string codec = "";               // empty: each of bf16, int8, int4, fp8e4m3, fp8e5m2
  std::string direction = "";           // encode, decode, decode-add; empty: each
  int64_t elements = int64_t{1} << 27;  // fp32: 512 MiB, beyond the last cache of most processors
  Dtype dtype = Dtype::kFloat32;        // of source and result: fp32, bf16 (no decode-add), fp64
};

/// One row per codec and direction, on the calling thread. Verified: every element decodes within
/// the codec's stated bound, and decode-add equals the sum. rate = bytes read and written per
/// second; bound "memory-copy": as many bytes at the rate of the faster of memcpy and a loop of
/// stores past the caches, over buffers of the same size, in the same runs. UserError for an
/// unknown codec or direction and for bf16 sums. Memory: two buffers of elements and one piece.
std::vector<BenchRow> bench_codec(const CodecCase& codec_case, const TimingOptions& options = {});

}  // namespace strait::measure
