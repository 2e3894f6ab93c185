#include "strait/device/tensor_codec.h"

#include <ATen/ATen.h>

#include <cfloat>
#include <limits>

#include "strait/base/errors.h"
#include "strait/codec/block_scale.h"
#include "strait/codec/element.h"

namespace strait::device {
namespace {

using codec::CodecKind;
using codec::CodecSpec;

/// One-dimensional, zeros behind it up to a multiple of `unit`.
at::Tensor padded(const at::Tensor& flat, int64_t unit) {
  return at::constant_pad_nd(flat, {0, (unit - flat.numel() % unit) % unit});
}

/// Elements as rows of blocks; the scale of a block as a column.
at::Tensor steps_of(const at::Tensor& blocks, const CodecSpec& spec) {
  const at::Tensor largest = blocks.abs().amax({1}, true);
  if (spec.kind == CodecKind::kE3m0) return largest.clamp_min(codec::kSmallestE3m0Scale);
  // A tensor, because a division by a number may become a product with its inverse.
  const at::Tensor divisor = at::full({1, 1}, codec::symmetric_divisor(spec), blocks.options());
  return largest.clamp_max(codec::kLargestEnd).div(divisor).clamp_min(FLT_MIN);
}

at::Tensor integer_codes(const at::Tensor& blocks, const at::Tensor& steps, const CodecSpec& spec) {
  const codec::IntegerRange range = codec::integer_range(spec);
  const at::Tensor levels = blocks.mul(at::ones_like(steps).div(steps)).round_();
  return levels.clamp_(range.lowest, range.highest).to(at::kChar);
}

/// As codec::to_e3m0, on the bits of all elements at once.
at::Tensor e3m0_codes(const at::Tensor& blocks, const at::Tensor& steps) {
  const at::Tensor bits = blocks.view(at::kInt);
  const at::Tensor borders = steps.mul(at::full({1, 1}, codec::kSqrtHalf, steps.options()));
  const at::Tensor distances = bits.bitwise_and(0x7fffffff).sub_(borders.view(at::kInt));
  const at::Tensor powers = distances.bitwise_right_shift(23).add_(7).clamp_min_(0);
  return powers.bitwise_or(bits.bitwise_right_shift(28).bitwise_and(8)).to(at::kChar);
}

at::Tensor pack_nibbles(const at::Tensor& codes) {
  const at::Tensor pairs = padded(codes, 2).bitwise_and(15).to(at::kByte).view({-1, 2});
  return pairs.select(1, 0).bitwise_or(pairs.select(1, 1).mul(16));
}

/// The codes in both halves of each byte.
at::Tensor unpack_nibbles(const at::Tensor& bytes) {
  return at::stack({bytes.bitwise_and(15), bytes.floor_divide(16)}, 1).view({-1});
}

/// The numbers of a payload before the scales, fp32.
at::Tensor numbers_of(const at::Tensor& payload, const CodecSpec& spec) {
  if (spec.kind == CodecKind::kInt8) return payload.contiguous().view(at::kChar).to(at::kFloat);
  const at::Tensor codes = unpack_nibbles(payload).to(at::kChar);
  if (spec.kind == CodecKind::kInt4) return codes.bitwise_xor(8).sub(8).to(at::kFloat);
  const at::Tensor wide = codes.to(at::kInt), powers = wide.bitwise_and(7);
  const at::Tensor sizes = powers.add(120).bitwise_left_shift(23).mul_(powers.ne(0));
  return sizes.bitwise_or(wide.bitwise_and(8).bitwise_left_shift(28)).view(at::kFloat);
}

/// Zeros and ones of bytes, the lowest bit of a byte first; and back.
at::Tensor powers_of_two(const at::Tensor& like) {
  return at::bitwise_left_shift(at::ones({8}, like.options()), at::arange(8, like.options()));
}
at::Tensor pack_bits(const at::Tensor& bits) {
  return bits.view({-1, 8}).mul(powers_of_two(bits)).sum({1}, false, at::kByte);
}
at::Tensor unpack_bits(const at::Tensor& bytes) {
  return bytes.view({-1, 1}).bitwise_and(powers_of_two(bytes)).ne(0).to(at::kByte).view({-1});
}

/// Blocks of a tensor as rows; of the last one's missing elements and of those that are not finite
/// as `instead`.
at::Tensor rows_with(const at::Tensor& flat, const at::Tensor& finite, int64_t block,
                     float instead) {
  const at::Tensor kept = at::where(finite, flat, at::full({}, instead, flat.options()));
  return at::constant_pad_nd(kept, {0, (block - flat.numel() % block) % block}, instead)
      .view({-1, block});
}

/// As codec::encode_qsgd, on all blocks at once.
at::Tensor encode_qsgd(const CodecSpec& spec, const at::Tensor& flat, const at::Tensor& finite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto end_of = [](const at::Tensor& end) { return end.masked_fill(end.isinf(), 0.0f); };
  const at::Tensor low = end_of(rows_with(flat, finite, spec.block, kInfinity).amin({1}, true));
  const at::Tensor high = end_of(rows_with(flat, finite, spec.block, -kInfinity).amax({1}, true));
  const double levels = (1 << spec.bits) - 1;
  const at::Tensor range = high.to(at::kDouble).sub(low.to(at::kDouble));
  const at::Tensor divisor = at::full({1, 1}, levels, range.options());
  const at::Tensor steps =
      range.div(divisor).clamp(FLT_MIN, FLT_MAX).to(at::kFloat).masked_fill(low.eq(high), 0.0f);
  const at::Tensor wide = steps.to(at::kDouble);
  const at::Tensor inverse = at::ones_like(wide).div(wide).masked_fill(wide.eq(0), 0.0);
  const at::Tensor above =
      rows_with(flat, finite, spec.block, 0.0f).to(at::kDouble).sub(low.to(at::kDouble));
  const at::Tensor codes =
      above.mul(inverse).add(0.5).floor().clamp(0.0, levels).to(at::kByte).view({-1, 1});
  const at::Tensor bits = codes.slice(0, 0, flat.numel())
                              .bitwise_and(powers_of_two(codes).slice(0, 0, spec.bits))
                              .ne(0)
                              .to(at::kByte)
                              .view({-1});
  return at::cat({pack_bits(padded(bits, 64)), steps.view({-1}).view(at::kByte),
                  low.add(0.0f).view({-1}).view(at::kByte)});
}

at::Tensor decode_qsgd(const CodecSpec& spec, const at::Tensor& piece, int64_t elements) {
  const int64_t payload = codec::payload_bytes(spec, elements);
  const at::Tensor scales =
      piece.slice(0, payload).clone().view(at::kFloat).view({2, -1, 1}).to(at::kDouble);
  const at::Tensor bits = unpack_bits(piece.slice(0, 0, payload).clone())
                              .slice(0, 0, elements * spec.bits)
                              .view({-1, spec.bits});
  const at::Tensor codes =
      bits.mul(powers_of_two(bits).slice(0, 0, spec.bits)).sum({1}, false, at::kByte);
  const at::Tensor blocks = padded(codes, spec.block).view({-1, spec.block}).to(at::kDouble);
  const at::Tensor values = blocks.mul(scales[0]).add(scales[1]).clamp(-FLT_MAX, FLT_MAX);
  return values.to(at::kFloat).view({-1}).slice(0, 0, elements);
}

}  // namespace

EncodedTensor encode_tensor(const CodecSpec& spec, const at::Tensor& source) {
  require_tensor_codec(spec);
  const at::Tensor flat = source.reshape({-1}).to(at::kFloat);
  const at::Tensor finite = at::isfinite(flat);
  if (spec.kind == CodecKind::kQsgd)
    return {encode_qsgd(spec, flat, finite), finite.logical_not().sum()};
  const at::Tensor kept = at::where(finite, flat, at::zeros({}, flat.options()));
  const at::Tensor blocks = padded(kept, spec.block).view({-1, spec.block});
  const at::Tensor steps = steps_of(blocks, spec);
  const bool integer = codec::is_integer(spec.kind);
  const at::Tensor padded_codes =
      integer ? integer_codes(blocks, steps, spec) : e3m0_codes(blocks, steps);
  const at::Tensor codes = padded_codes.view({-1}).slice(0, 0, flat.numel());
  const at::Tensor payload =
      codec::has_nibbles(spec.kind) ? pack_nibbles(codes) : codes.contiguous().view(at::kByte);
  return {at::cat({payload, steps.view({-1}).view(at::kByte)}), finite.logical_not().sum()};
}

at::Tensor decode_tensor(const CodecSpec& spec, const at::Tensor& piece, int64_t elements) {
  require_tensor_codec(spec);
  ensure(piece.numel() == codec::encoded_bytes(spec, elements),
         "decode_tensor: the piece has another length");
  if (spec.kind == CodecKind::kQsgd) return decode_qsgd(spec, piece, elements);
  const int64_t payload = codec::payload_bytes(spec, elements);
  // Cloned, because a view as fp32 needs aligned memory.
  const at::Tensor steps = piece.slice(0, payload).clone().view(at::kFloat).view({-1, 1});
  const at::Tensor numbers = numbers_of(piece.slice(0, 0, payload), spec).slice(0, 0, elements);
  const at::Tensor blocks = padded(numbers, spec.block).view({-1, spec.block});
  return blocks.mul(steps).view({-1}).slice(0, 0, elements);
}

}  // namespace strait::device
