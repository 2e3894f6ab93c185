// Codecs on tensors of any device, in ATen operators: pieces as codec/codec.h defines them.
#pragma once

#include <ATen/core/Tensor.h>

#include "strait/codec/codec.h"
#include "strait/device/require_codec.h"

namespace strait::device {

/// A piece on the source's device.
struct EncodedTensor {
  at::Tensor piece;       // bytes, encoded_bytes long
  at::Tensor non_finite;  // one int64: elements that are not finite, encoded as 0
};

/// Encodes a floating-point tensor of any shape. int8, int4 (symmetric), e3m0 and qsgd; on the
/// CPU the same bits as codec::encode. Reads nothing back to the host. Errors: UserError, with the
/// nearest valid choice, for other codecs. Cost: about ten passes over fp32 copies of the source.
EncodedTensor encode_tensor(const codec::CodecSpec& spec, const at::Tensor& source);

/// The `elements` numbers of a piece, one-dimensional fp32. Errors: as above; InternalError when
/// the piece has another length.
at::Tensor decode_tensor(const codec::CodecSpec& spec, const at::Tensor& piece, int64_t elements);

}  // namespace strait::device
