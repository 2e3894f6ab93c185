// The public functions: checks, threads, and the loop over chunks that stay in the first cache.
#include "strait/codec/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "strait/base/errors.h"
#include "strait/codec/ranges.h"
#include "strait/codec/sparse.h"
#include "strait/kernel/parallel.h"

namespace strait::codec {
namespace {

constexpr int64_t kSplitElements = int64_t{1} << 14;       // least work worth a thread
constexpr int64_t kPastCachesElements = int64_t{1} << 21;  // 8 MiB of fp32
constexpr int64_t kChunkElements = 2048;                   // fp32 of a chunk: 8 KiB

/// The smallest multiple of `unit` that is at least `least`.
int64_t grown(int64_t unit, int64_t least) { return (least + unit - 1) / unit * unit; }

[[noreturn]] void refuse(const char* operation, const std::string& what) {
  throw InternalError(fmt::format("codec: {}: {}", operation, what));
}

void require_length(const char* operation, const CodecSpec& spec, int64_t has, int64_t wants) {
  if (has == wants) return;  // without a text that nobody reads
  refuse(operation,
         fmt::format("a piece of {} has {} bytes, not {}", print_codec(spec), wants, has));
}

void require_dtype(const char* operation, Dtype dtype, bool sums) {
  const bool known =
      dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64 || (dtype == Dtype::kBfloat16 && !sums);
  if (known) return;
  refuse(operation, fmt::format("{} is not available; there are fp32, fp64{}", dtype_name(dtype),
                                sums ? "" : " and bf16"));
}

uint8_t* at(void* data, Dtype dtype, int64_t element) {
  return static_cast<uint8_t*>(data) + element * dtype_bytes(dtype);
}
const uint8_t* at(const void* data, Dtype dtype, int64_t element) {
  return static_cast<const uint8_t*>(data) + element * dtype_bytes(dtype);
}

template <class T>
int64_t count_lost(const void* data, int64_t begin, int64_t end) {
  int64_t lost = 0;
  for (int64_t i = begin; i < end; ++i)
    lost += !std::isfinite(static_cast<float>(static_cast<const T*>(data)[i]));
  return lost;
}

/// `none`: the bytes, and for numbers that are read as fp32 the count of lost ones.
int64_t copy_range(const ConstValues& source, uint8_t* encoded, int64_t begin, int64_t end) {
  std::memcpy(encoded + begin * dtype_bytes(source.dtype), at(source.data, source.dtype, begin),
              static_cast<size_t>((end - begin) * dtype_bytes(source.dtype)));
  if (source.dtype == Dtype::kFloat32) return count_lost<float>(source.data, begin, end);
  if (source.dtype == Dtype::kFloat64) return count_lost<double>(source.data, begin, end);
  if (source.dtype != Dtype::kBfloat16) return 0;
  const uint16_t* bits = static_cast<const uint16_t*>(source.data);
  return std::count_if(bits + begin, bits + end, [](uint16_t x) { return (x & 0x7f80) == 0x7f80; });
}

template <class T>
void add_plain(const uint8_t* encoded, void* sum, int64_t begin, int64_t end) {
  T* out = static_cast<T*>(sum);
  for (int64_t i = begin; i < end; ++i) {
    T value;
    std::memcpy(&value, encoded + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i - begin] += value;
  }
}

/// Elements [begin, end) of a piece to `out`, which points to element `begin`.
void decode_part(const CodecSpec& spec, const uint8_t* encoded, const DecodeRange& range) {
  if (spec.kind != CodecKind::kNone) return decode_range(range);
  const int64_t size = dtype_bytes(range.dtype);
  if (!range.add) {
    std::memcpy(range.out, encoded + range.begin * size,
                static_cast<size_t>((range.end - range.begin) * size));
  } else if (range.dtype == Dtype::kFloat32) {
    add_plain<float>(encoded, range.out, range.begin, range.end);
  } else {
    add_plain<double>(encoded, range.out, range.begin, range.end);
  }
}

void decode_all(const CodecSpec& spec, const uint8_t* encoded, const Values& out, bool add,
                int threads) {
  if (is_sparse(spec)) return decode_sparse(spec, encoded, out, add);
  kernel::parallel_ranges(out.elements, grown(range_unit(spec), kSplitElements), threads,
                          [&](int64_t begin, int64_t end) {
                            decode_part(
                                spec, encoded,
                                {spec, encoded, at(out.data, out.dtype, begin), out.dtype, add,
                                 out.elements, begin, end, out.elements >= kPastCachesElements});
                          });
}

void require_pieces(const char* operation, const Pieces& from) {
  if (from.pieces.empty()) refuse(operation, "there are no pieces");
  for (const auto& piece : from.pieces)
    require_length(operation, from.spec, static_cast<int64_t>(piece.size()),
                   encoded_bytes(from.spec, from.elements));
}

/// The fp32 sum of elements [begin, end) of all pieces.
void sum_part(const Pieces& from, int64_t begin, int64_t end, float* sum) {
  bool add = false;
  for (const auto& piece : from.pieces) {
    decode_part(from.spec, piece.data(),
                {from.spec, piece.data(), sum, Dtype::kFloat32, add, from.elements, begin, end});
    add = true;
  }
}

std::vector<float> sparse_sum(const Pieces& from) {
  std::vector<float> sums(static_cast<size_t>(from.elements));
  bool add = false;
  for (const auto& piece : from.pieces) {
    decode_sparse(from.spec, piece.data(), {sums.data(), Dtype::kFloat32, from.elements}, add);
    add = true;
  }
  return sums;
}

/// Calls use(begin, end, sums) for chunks of `chunk` elements; use must not throw.
template <class Use>
void for_each_sum(const Pieces& from, int64_t chunk, int threads, const Use& use) {
  kernel::parallel_ranges(
      from.elements, grown(chunk, kSplitElements), threads, [&](int64_t begin, int64_t end) {
        std::vector<float> sums(static_cast<size_t>(std::min(chunk, end - begin)));
        for (int64_t i = begin; i < end; i += chunk) {
          const int64_t stop = std::min(i + chunk, end);
          sum_part(from, i, stop, sums.data());
          use(i, stop, sums.data());
        }
      });
}

/// A bf16 payload is made and read by the same kernels as any other.
const CodecSpec kRounded{CodecKind::kBfloat16, 0, false, false, false};

/// Writes fp32 values as elements [begin, end) of out.
void store_sums(const Values& out, const float* sums, int64_t begin, int64_t end) {
  uint8_t* to = at(out.data, out.dtype, begin);
  if (out.dtype == Dtype::kFloat32) {
    std::memcpy(to, sums, static_cast<size_t>(end - begin) * sizeof(float));
  } else if (out.dtype == Dtype::kFloat64) {
    std::copy_n(sums, end - begin, reinterpret_cast<double*>(to));
  } else {
    static_cast<void>(
        encode_range({kRounded, sums, Dtype::kFloat32, to, end - begin, 0, end - begin}));
  }
}

}  // namespace

int64_t encode(const CodecSpec& spec, const ConstValues& source, std::span<uint8_t> encoded,
               int threads, const Draw& draw) {
  require_length("encode", spec, static_cast<int64_t>(encoded.size()),
                 encoded_bytes(spec, source.elements, source.dtype));
  const bool plain = spec.kind == CodecKind::kNone;
  if (!plain) require_dtype("encode", source.dtype, false);
  if (is_sparse(spec)) return encode_sparse(spec, source, encoded.data(), draw);
  std::atomic<int64_t> lost = 0;
  kernel::parallel_ranges(
      source.elements, grown(range_unit(spec), kSplitElements), threads,
      [&](int64_t begin, int64_t end) {
        lost += plain ? copy_range(source, encoded.data(), begin, end)
                      : encode_range({spec, at(source.data, source.dtype, begin), source.dtype,
                                      encoded.data(), source.elements, begin, end,
                                      source.elements >= kPastCachesElements, draw});
      });
  return lost;
}

void decode(const CodecSpec& spec, std::span<const uint8_t> encoded, const Values& out,
            int threads) {
  require_length("decode", spec, static_cast<int64_t>(encoded.size()),
                 encoded_bytes(spec, out.elements, out.dtype));
  if (spec.kind != CodecKind::kNone) require_dtype("decode", out.dtype, false);
  decode_all(spec, encoded.data(), out, false, threads);
}

void decode_add(const CodecSpec& spec, std::span<const uint8_t> encoded, const Values& sum,
                int threads) {
  require_length("decode_add", spec, static_cast<int64_t>(encoded.size()),
                 encoded_bytes(spec, sum.elements, sum.dtype));
  require_dtype("decode_add", sum.dtype, true);
  decode_all(spec, encoded.data(), sum, true, threads);
}

void decode_sum(const Pieces& from, const Values& out, int threads) {
  require_pieces("decode_sum", from);
  require_dtype("decode_sum", out.dtype, false);
  if (out.elements != from.elements) refuse("decode_sum", "the sum is not as long as the pieces");
  if (is_sparse(from.spec)) return store_sums(out, sparse_sum(from).data(), 0, out.elements);
  for_each_sum(from, kChunkElements, threads, [&](int64_t begin, int64_t end, const float* sums) {
    store_sums(out, sums, begin, end);
  });
}

int64_t decode_add_encode(const Pieces& from, const CodecSpec& to, std::span<uint8_t> encoded,
                          int threads) {
  require_pieces("decode_add_encode", from);
  require_length("decode_add_encode", to, static_cast<int64_t>(encoded.size()),
                 encoded_bytes(to, from.elements));
  if (is_sparse(from.spec) || is_sparse(to)) {
    std::vector<float> sums(static_cast<size_t>(from.elements));
    decode_sum(from, {sums.data(), Dtype::kFloat32, from.elements}, threads);
    return encode(to, {sums.data(), Dtype::kFloat32, from.elements}, encoded, threads);
  }
  const bool plain = to.kind == CodecKind::kNone;
  std::atomic<int64_t> lost = 0;
  for_each_sum(from, grown(range_unit(to), kChunkElements), threads,
               [&](int64_t begin, int64_t end, const float* sums) {
                 const ConstValues values{sums, Dtype::kFloat32, end - begin};
                 lost += plain ? copy_range(values, encoded.data() + 4 * begin, 0, end - begin)
                               : encode_range({to, sums, Dtype::kFloat32, encoded.data(),
                                               from.elements, begin, end});
               });
  return lost;
}

}  // namespace strait::codec
