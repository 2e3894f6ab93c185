// Codecs: how a buffer of numbers becomes fewer bytes on a link, and what that costs in error.
//
// A codec is written as `kind[/block][+flag]...` wherever one is named (docs/codecs.md):
//   none            the elements as they are
//   bf16            rounded to bfloat16
//   fp16            rounded to IEEE half precision; what is beyond 65504 counts as not finite
//   int8 int4       signed integers with one scale per block of elements
//   fp8e4m3 fp8e5m2 8-bit floating point (OCP: largest 448 and 57344) with one scale per block
//   e3m0            4 bits: a sign and a power of two, s to s / 64 or zero, where s is the largest
//                   |x| of the block; the format of outer gradients in Streaming DiLoCo
//                   (arXiv 2501.18512), whose scales are our choice
//   qsgd1 .. qsgd8  that many bits: equal steps from a block's smallest to its largest element, the
//                   max-min form of QSGD as torch_cgx and L-GreCo have it
//   topk/D          the largest part D of a piece's elements with their positions; 0 < D <= 1
//   powersgd/R      no codec but a reducer (compression/low_rank.h): factors of rank R, which are
//                   summed; it has no pieces
//   randomk/D       a part D of a piece's elements, one drawn from each of equal stretches
//   +asymmetric     int8 and int4: a block's range is its smallest to its largest element
//   +paper          int8 and int4: divisor 2^(b-1) (asymmetric: 2^b) as in ZeRO++, which cuts the
//                   largest element; without it 2^(b-1) - 1 (2^b - 1), which does not
//   +stochastic     qsgd: levels are drawn, so that the mean over draws is the element
//   +ef             the user of the codec keeps an ErrorFeedback (error_feedback.h)
//
// Encoded piece: the payload, then the metadata, without a gap. No alignment is asked for (64 bytes
// are fastest); multi-byte numbers are in the machine's order (little-endian).
//   payload    element i of int8 and fp8 in byte i; of int4 and e3m0 in byte i / 2, even i in its
//              low half; of bf16 and fp16 in bytes 2i, 2i + 1
//              e3m0: bit 3 is the sign; bits 0 to 2 are 0 for zero, else e for s 2^(e - 7)
//              qsgd with b bits: code i in bits i b to i b + b - 1, the lowest bit of a byte first;
//              zeros up to a multiple of 8 bytes
//              topk and randomk: k elements in fp32 in the order of their positions; all elements
//              and no metadata where that is not longer
//   metadata   one fp32 step per block (e3m0: s); asymmetric: then one fp32 middle per block; qsgd:
//              one fp32 step per block, then one fp32 smallest element per block; topk: k positions
//              of 4 bytes; randomk: 8 bytes that the positions follow from
// A piece needs nothing but itself, its codec and its number of elements to be decoded.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "strait/base/dtype.h"
#include "strait/base/random.h"

namespace strait::codec {

enum class CodecKind : uint8_t {
  kNone,
  kBfloat16,
  kFloat16,
  kInt8,
  kInt4,
  kFp8E4m3,
  kFp8E5m2,
  kE3m0,
  kQsgd,
  kTopK,
  kRandomK,
  kPowerSgd
};

struct CodecSpec {
  CodecKind kind = CodecKind::kNone;
  int64_t block = 0;  // elements that share a scale, >= 1; 0 for none, bf16 and fp16
  bool asymmetric = false;
  bool paper_divisor = false;
  bool error_feedback = false;
  int bits = 0;        // of a code of qsgd, 1 to 8; 0 for all others
  double density = 0;  // of topk and randomk, in (0, 1]; 0 for all others
  bool stochastic = false;
  int64_t rank = 0;  // of powersgd, >= 1; 0 for all others
  bool operator==(const CodecSpec&) const = default;
};

/// Sends some elements of a piece alone (codec/sparse.h). What the others lose is only bearable
/// with error feedback, and a piece's length does not tell how much of it is metadata.
inline bool is_sparse(const CodecSpec& spec) {
  return spec.kind == CodecKind::kTopK || spec.kind == CodecKind::kRandomK;
}
inline bool is_low_rank(const CodecSpec& spec) { return spec.kind == CodecKind::kPowerSgd; }
/// Works on whole layers alone.
inline bool is_of_layers(const CodecSpec& spec) { return is_sparse(spec) || is_low_rank(spec); }
/// What is encoded depends on a Draw.
inline bool draws(const CodecSpec& spec) {
  return spec.kind == CodecKind::kRandomK || spec.stochastic;
}
/// Elements that topk and randomk send of a piece: max(1, D elements, rounded down).
int64_t kept_elements(const CodecSpec& spec, int64_t elements);

/// Where randomness comes from: a stream's key, and the number of a buffer's first element in it.
struct Draw {
  uint64_t key = 0;
  uint64_t first = 0;
  uint64_t bits(uint64_t element) const { return mix64(key ^ mix64(first + element)); }
};

/// `text` as above; a kind without a block gets its usual one (int8 and fp8 2048, int4 512,
/// e3m0 64, qsgd 512), topk and randomk a density of 0.01, powersgd rank 4.
/// Errors: UserError with `key` and the nearest valid choice.
CodecSpec parse_codec(const std::string& text, const std::string& key = "");

/// What parse_codec reads back, the block always written.
std::string print_codec(const CodecSpec& spec);

/// Exact sizes of the piece of `elements` elements. InternalError for powersgd. `dtype` (of the
/// source) matters to `none` alone.
int64_t num_blocks(const CodecSpec& spec, int64_t elements);
int64_t payload_bytes(const CodecSpec& spec, int64_t elements, Dtype dtype = Dtype::kFloat32);
int64_t metadata_bytes(const CodecSpec& spec, int64_t elements);
/// Scales among the bytes of a whole piece, from its length alone: metadata_bytes of the elements
/// that it holds. Errors: InternalError for sparse codecs.
int64_t scale_bytes(const CodecSpec& spec, int64_t piece_bytes);
/// Payload and metadata.
int64_t encoded_bytes(const CodecSpec& spec, int64_t elements, Dtype dtype = Dtype::kFloat32);

/// Upper bound of |x - decoded x| for every x of a block whose smallest and largest elements are
/// `low` and `high` (fp32 values), rounding errors included. With s = the block's step:
///   int, symmetric        s / 2, s = max(|low|, |high|) / divisor; +paper: up to s above 0
///   int, asymmetric       s / 2 and rounding of |x|, s = (high - low) / divisor
///   fp8                   half the gap between neighbours next to the largest element
///   e3m0                  (1 - sqrt(1/2)) s, s = max(|low|, |high|, 2^-119); of an element that is
///                         not decoded as 0, sqrt(2) - 1 of it
///   qsgd                  s / 2 and rounding of |x|, s = (high - low) / (2^bits - 1); +stochastic:
///                         s
///   bf16                  2^-8 of the largest
///   fp16                  2^-11 of the largest, at least 2^-25
///   topk, randomk         max(|low|, |high|)
/// s is at least 2^-126, so the bound is never below 2^-127 where there are steps.
double error_bound(const CodecSpec& spec, double low, double high);

/// Elements in memory. dtype: fp32, bf16 or fp64; kNone without sums takes every dtype.
struct ConstValues {
  const void* data = nullptr;
  Dtype dtype = Dtype::kFloat32;
  int64_t elements = 0;
};
struct Values {
  void* data = nullptr;
  Dtype dtype = Dtype::kFloat32;
  int64_t elements = 0;
};

// All functions below: blocking; at most `threads` threads; no two buffers may overlap;
// results are the same bits for every number of threads, instruction set and alignment. Errors:
// InternalError when a length does not fit or a dtype is not available.

/// Encodes and returns the number of elements that are not finite in fp32 (NaN, infinities, fp64
/// numbers beyond fp32). Such an element takes no part in its block's scale and is encoded as 0, so
/// the caller must look at the result; `none` copies it as it is. Rounding: half to even; e3m0: to
/// the nearest in log2; qsgd: half up. A block of zeros decodes to exact zeros. fp64 is rounded to
/// fp32 first. bf16 saturates at its largest finite number; fp16 does not: what rounds to its
/// infinity counts as not finite. encoded: exactly encoded_bytes long. Cost: reads the source once
/// (blocks up to about 8,192 elements), writes the piece once; sparse codecs use one thread. The
/// same draw gives the same piece, and randomk the same positions of any source.
[[nodiscard]] int64_t encode(const CodecSpec& spec, const ConstValues& source,
                             std::span<uint8_t> encoded, int threads = 1, const Draw& draw = {});

/// out = the decoded piece, rounded to out's dtype (bf16: half to even).
void decode(const CodecSpec& spec, std::span<const uint8_t> encoded, const Values& out,
            int threads = 1);

/// sum += the decoded piece, in sum's dtype: fp32 or fp64.
void decode_add(const CodecSpec& spec, std::span<const uint8_t> encoded, const Values& sum,
                int threads = 1);

/// Equally long pieces of one codec (`none`: fp32), one per rank, in rank order.
struct Pieces {
  CodecSpec spec;
  std::span<const std::span<const uint8_t>> pieces;
  int64_t elements = 0;
};

/// out = ((piece 0 + piece 1) + piece 2) ... in fp32, rounded to out's dtype. Reads every piece
/// once. At least one piece.
void decode_sum(const Pieces& from, const Values& out, int threads = 1);

/// The same sum, encoded as encode would encode it in fp32; returns what encode returns.
[[nodiscard]] int64_t decode_add_encode(const Pieces& from, const CodecSpec& to,
                                        std::span<uint8_t> encoded, int threads = 1);

}  // namespace strait::codec
