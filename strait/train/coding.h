// Executes encodes and decodes: numbers of a unit to pieces of a codec and back.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "strait/codec/codec.h"
#include "strait/device/arithmetic.h"
#include "strait/runtime/interpreter.h"

namespace strait::train {

/// One per rank; remembers codecs by their text.
class Coding {
 public:
  /// Keeps what it loses where the op has a residual. Adds the number of elements that were not finite to
  /// `not_finite` unless it is null.
  void encode(const runtime::Instance& instance, int64_t rank, device::Arithmetic& arithmetic,
              double* not_finite);
  /// decode, and decode_sum: pieces of the group's members in order of position.
  void decode(const runtime::Instance& instance, int64_t rank, device::Arithmetic& arithmetic);

 private:
  const codec::CodecSpec& spec(const std::string& text);
  std::unordered_map<std::string, codec::CodecSpec> specs_;
};

}  // namespace strait::train
