// Executes encodes and decodes: numbers of a unit to pieces of a codec and back.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "strait/codec/codec.h"
#include "strait/runtime/interpreter.h"

namespace strait::train {

/// One per rank; remembers codecs by their text.
class Coding {
 public:
  /// Keeps what it loses where the op has a residual. Returns the number of elements that were not finite.
  int64_t encode(const runtime::Instance& instance, int64_t rank, int threads);
  /// decode, and decode_sum: pieces of the group's members in order of position.
  void decode(const runtime::Instance& instance, int64_t rank, int threads);

 private:
  const codec::CodecSpec& spec(const std::string& text);
  std::unordered_map<std::string, codec::CodecSpec> specs_;
};

}  // namespace strait::train
