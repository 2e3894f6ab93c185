// Sparse codecs: of a piece k elements are sent, the largest or ones that are drawn; the others are
// decoded as 0. Source: L-GreCo's table of compressors, and for random-k Stich et al., Sparsified
// SGD with memory (arXiv 1809.07599), drawn here one from each of k equal stretches.
#pragma once

#include <cstdint>
#include <span>

#include "strait/codec/codec.h"

namespace strait::codec {

/// Whether the piece holds all elements, because k of them would not be smaller.
bool is_dense(const CodecSpec& spec, int64_t elements);

/// As codec::encode and codec::decode; on the calling thread. All elements are looked at, sent or
/// not, for what is not finite. Cost: top-k reads the source four times, random-k once.
int64_t encode_sparse(const CodecSpec& spec, const ConstValues& source, uint8_t* encoded,
                      const Draw& draw);
void decode_sparse(const CodecSpec& spec, const uint8_t* encoded, const Values& out, bool add);

}  // namespace strait::codec
