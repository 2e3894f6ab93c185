#include "strait/comm/sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "strait/base/errors.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace strait::comm {

namespace {

/// Above this size a destination will not stay in the cache anyway.
constexpr int64_t kStreamingBytes = int64_t{4} << 20;
constexpr int64_t kChunkBytes = 16 << 10;  // accumulator of a sum: stays in the first-level cache

#if defined(__SSE2__)
void stream_bytes(const char* source, char* destination, int64_t bytes) {
  const int64_t head = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(destination) & 63);
  std::memcpy(destination, source, head);
  int64_t at = head;
  for (; at + 64 <= bytes; at += 64) {
    const __m128i* from = reinterpret_cast<const __m128i*>(source + at);
    __m128i* to = reinterpret_cast<__m128i*>(destination + at);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  _mm_sfence();
  std::memcpy(destination + at, source + at, bytes - at);
}
#endif

/// sum[i] = left[i] + right[i]; any of them may be equal.
template <class T>
void add_two(const T* left, const T* right, T* sum, int64_t elements) {
#pragma GCC ivdep
  for (int64_t i = 0; i < elements; ++i) sum[i] = static_cast<T>(left[i] + right[i]);
}

/// One chunk: the running sum lives in `partial` until the last addition, which writes the
/// destination.
template <class T>
void sum_chunk(const std::vector<const void*>& sources, T* destination, int64_t begin,
               int64_t elements) {
  std::array<T, kChunkBytes / sizeof(T)> partial;
  const auto source = [&](size_t k) { return static_cast<const T*>(sources[k]) + begin; };
  const T* sum = source(0);
  for (size_t k = 1; k + 1 < sources.size(); ++k) {
    add_two(sum, source(k), partial.data(), elements);
    sum = partial.data();
  }
  add_two(sum, source(sources.size() - 1), destination, elements);
}

template <class T>
void sum_typed(const std::vector<const void*>& sources, T* destination, int64_t elements,
               bool accumulate) {
  constexpr int64_t kChunk = kChunkBytes / static_cast<int64_t>(sizeof(T));
  std::array<T, kChunk> total;
  for (int64_t begin = 0; begin < elements; begin += kChunk) {
    const int64_t count = std::min(kChunk, elements - begin);
    if (sources.size() == 1) {
      const T* only = static_cast<const T*>(sources[0]) + begin;
      if (accumulate) add_two(destination + begin, only, destination + begin, count);
      if (!accumulate)
        copy_bytes(only, destination + begin, count * static_cast<int64_t>(sizeof(T)));
    } else if (accumulate) {
      sum_chunk(sources, total.data(), begin, count);
      add_two(destination + begin, total.data(), destination + begin, count);
    } else {
      sum_chunk(sources, destination + begin, begin, count);
    }
  }
}

float from_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// To the nearest, ties to even; a NaN stays one.
uint16_t to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40 : rounded);
}

/// In fp32, rounded once at the end.
void sum_bfloat16(const std::vector<const void*>& sources, uint16_t* destination, int64_t elements,
                  bool accumulate) {
  constexpr int64_t kChunk = kChunkBytes / static_cast<int64_t>(sizeof(float));
  std::array<float, kChunk> sum;
  for (int64_t begin = 0; begin < elements; begin += kChunk) {
    const int64_t count = std::min(kChunk, elements - begin);
    for (size_t k = 0; k < sources.size(); ++k) {
      const uint16_t* source = static_cast<const uint16_t*>(sources[k]) + begin;
      if (k == 0)
        for (int64_t i = 0; i < count; ++i) sum[i] = from_bfloat16(source[i]);
      else
        for (int64_t i = 0; i < count; ++i) sum[i] += from_bfloat16(source[i]);
    }
    uint16_t* target = destination + begin;
    if (accumulate)
      for (int64_t i = 0; i < count; ++i) sum[i] = from_bfloat16(target[i]) + sum[i];
    for (int64_t i = 0; i < count; ++i) target[i] = to_bfloat16(sum[i]);
  }
}

}  // namespace

void copy_bytes(const void* source, void* destination, int64_t bytes) {
  if (source == destination || bytes == 0) return;
#if defined(__SSE2__)
  if (bytes >= kStreamingBytes)
    return stream_bytes(static_cast<const char*>(source), static_cast<char*>(destination), bytes);
#endif
  std::memcpy(destination, source, bytes);
}

bool is_summable(Dtype dtype) { return dtype != Dtype::kFloat16; }

void sum_in_order(Dtype dtype, const std::vector<const void*>& sources, void* destination,
                  int64_t elements, bool accumulate) {
  switch (dtype) {
    case Dtype::kByte:
      return sum_typed(sources, static_cast<uint8_t*>(destination), elements, accumulate);
    case Dtype::kInt32:  // unsigned, so that overflow wraps
      return sum_typed(sources, static_cast<uint32_t*>(destination), elements, accumulate);
    case Dtype::kInt64:
      return sum_typed(sources, static_cast<uint64_t*>(destination), elements, accumulate);
    case Dtype::kFloat32:
      return sum_typed(sources, static_cast<float*>(destination), elements, accumulate);
    case Dtype::kFloat64:
      return sum_typed(sources, static_cast<double*>(destination), elements, accumulate);
    case Dtype::kBfloat16:
      return sum_bfloat16(sources, static_cast<uint16_t*>(destination), elements, accumulate);
    default:
      throw UserError(std::string("no sum of ") + dtype_name(dtype) +
                      "; the nearest type that can be summed is fp32");
  }
}

}  // namespace strait::comm
