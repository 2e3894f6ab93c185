// Which codecs there are on tensors of any device (device/tensor_codec.h).
#pragma once

#include <string>

#include "strait/codec/codec.h"

namespace strait::device {

/// UserError, with the nearest valid choice and the key where it is given, unless encode_tensor
/// takes the codec.
void require_tensor_codec(const codec::CodecSpec& spec, const std::string& key = "");

}  // namespace strait::device
