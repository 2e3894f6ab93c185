#include "strait/device/tensor_codec.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cfloat>

#include "strait/base/errors.h"
#include "strait/codec/block_scale.h"

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
  // A tensor, because a division by a number may become a product with its inverse.
  const at::Tensor divisor = at::full({1, 1}, codec::symmetric_divisor(spec), blocks.options());
  const at::Tensor largest = blocks.abs().amax({1}, true).clamp_max(codec::kLargestEnd);
  return largest.div(divisor).clamp_min(FLT_MIN);
}

at::Tensor pack_nibbles(const at::Tensor& codes) {
  const at::Tensor pairs = padded(codes, 2).bitwise_and(15).to(at::kByte).view({-1, 2});
  return pairs.select(1, 0).bitwise_or(pairs.select(1, 1).mul(16));
}

/// Signed codes of both halves of each byte.
at::Tensor unpack_nibbles(const at::Tensor& bytes) {
  const at::Tensor halves =
      at::stack({bytes.bitwise_and(15), bytes.floor_divide(16)}, 1).view({-1});
  return halves.to(at::kChar).bitwise_xor(8).sub(8);
}

}  // namespace

void require_tensor_codec(const CodecSpec& spec, const std::string& key) {
  const bool integer = spec.kind == CodecKind::kInt8 || spec.kind == CodecKind::kInt4;
  if (integer && !spec.asymmetric) return;
  CodecSpec nearest = spec;
  nearest.asymmetric = false;
  if (!integer) nearest = codec::parse_codec("int8");
  ErrorPlace place;
  if (!key.empty()) place.key = key;
  throw UserError(
      fmt::format("codec {} has no form for tensors of any device; nearest valid choice: {}",
                  codec::print_codec(spec), codec::print_codec(nearest)),
      place);
}

EncodedTensor encode_tensor(const CodecSpec& spec, const at::Tensor& source) {
  require_tensor_codec(spec);
  const at::Tensor flat = source.reshape({-1}).to(at::kFloat);
  const at::Tensor finite = at::isfinite(flat);
  const at::Tensor kept = at::where(finite, flat, at::zeros({}, flat.options()));
  const at::Tensor blocks = padded(kept, spec.block).view({-1, spec.block});
  const at::Tensor steps = steps_of(blocks, spec);
  const codec::IntegerRange range = codec::integer_range(spec);
  at::Tensor codes = blocks.mul(at::ones_like(steps).div(steps)).round_();
  codes = codes.clamp_(range.lowest, range.highest).to(at::kChar).view({-1});
  codes = codes.slice(0, 0, flat.numel());
  const at::Tensor payload =
      spec.kind == CodecKind::kInt4 ? pack_nibbles(codes) : codes.contiguous().view(at::kByte);
  return {at::cat({payload, steps.view({-1}).view(at::kByte)}), finite.logical_not().sum()};
}

at::Tensor decode_tensor(const CodecSpec& spec, const at::Tensor& piece, int64_t elements) {
  require_tensor_codec(spec);
  ensure(piece.numel() == codec::encoded_bytes(spec, elements),
         "decode_tensor: the piece has another length");
  const int64_t payload = codec::payload_bytes(spec, elements);
  // Cloned, because a view as fp32 needs aligned memory.
  const at::Tensor steps = piece.slice(0, payload).clone().view(at::kFloat).view({-1, 1});
  const at::Tensor bytes = piece.slice(0, 0, payload);
  const at::Tensor codes =
      spec.kind == CodecKind::kInt4 ? unpack_nibbles(bytes) : bytes.contiguous().view(at::kChar);
  const at::Tensor blocks =
      padded(codes.slice(0, 0, elements), spec.block).view({-1, spec.block}).to(at::kFloat);
  return blocks.mul(steps).view({-1}).slice(0, 0, elements);
}

}  // namespace strait::device
