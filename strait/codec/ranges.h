// Encoding and decoding of element ranges of one piece, on the calling thread: what threads and
// fused functions are made of.
#pragma once

#include <cstdint>

#include "strait/codec/codec.h"

namespace strait::codec {

/// Elements [begin, end) of a piece of `elements`; begin is a multiple of range_unit, end too
/// unless it is the piece's end. `source` points to element `begin`.
struct EncodeRange {
  const CodecSpec& spec;
  const void* source;
  Dtype dtype;
  uint8_t* encoded;  // the whole piece
  int64_t elements, begin, end;
  bool past_caches = false;  // the piece is too large to be kept by them anyway
  Draw draw = {};
};
/// Number of elements that are not finite.
int64_t encode_range(const EncodeRange& range);

/// `out` points to element `begin`. add: out += (fp32, fp64), else out =.
struct DecodeRange {
  const CodecSpec& spec;
  const uint8_t* encoded;  // the whole piece
  void* out;
  Dtype dtype;
  bool add;
  int64_t elements, begin, end;
  bool past_caches = false;  // the result is too large to be kept by them anyway
};
void decode_range(const DecodeRange& range);

/// Whole blocks and whole bytes.
int64_t range_unit(const CodecSpec& spec);

}  // namespace strait::codec
