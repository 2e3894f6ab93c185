// Inputs of the codec tests: ordinary numbers and everything a format can choke on.
#pragma once

#include <cfloat>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "strait/base/random.h"
#include "strait/codec/codec.h"

namespace strait::codec {

inline const std::vector<std::string>& lossy_kinds() {
  static const std::vector<std::string> kinds = {
      "bf16",  "int8",  "int4",  "fp8e4m3", "fp8e5m2",         "e3m0",
      "qsgd1", "qsgd3", "qsgd4", "qsgd8",   "int8+asymmetric", "int4+asymmetric"};
  return kinds;
}

/// The codec with `block` where it has blocks; `flags` where they are allowed.
inline CodecSpec spec_of(const std::string& kind, int64_t block, bool paper = false) {
  CodecSpec spec = parse_codec(kind);
  if (spec.block > 0) spec.block = block;
  spec.paper_divisor = paper && (spec.kind == CodecKind::kInt8 || spec.kind == CodecKind::kInt4);
  return spec;
}

inline std::vector<float> normals(int64_t count, uint64_t seed, float deviation = 1.0f) {
  const RandomStream stream(seed, "codec-test");
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = deviation * static_cast<float>(stream.normal(i));
  return values;
}

struct Input {
  std::string name;
  std::vector<float> values;
};

/// Finite inputs of every awkward kind, `count` elements each.
inline std::vector<Input> finite_inputs(int64_t count) {
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  std::vector<Input> inputs = {{"normals", normals(count, 1)},
                               {"small", normals(count, 2, 1e-9f)},
                               {"large", normals(count, 3, 1e37f)},
                               {"denormals", normals(count, 4, 1e-41f)},
                               {"edge of denormals", normals(count, 5, 2e-37f)}};
  const auto add = [&](const char* name, auto value) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(i);
    inputs.push_back({name, std::move(values)});
  };
  add("zeros", [](size_t) { return 0.0f; });
  add("negative zeros", [](size_t) { return -0.0f; });
  add("extremes", [](size_t i) { return i % 3 == 0 ? FLT_MAX : i % 3 == 1 ? -FLT_MAX : 1.0f; });
  add("largest", [](size_t) { return FLT_MAX; });
  add("lowest", [](size_t) { return -FLT_MAX; });
  add("smallest", [=](size_t i) { return i % 2 == 0 ? kTiny : 0.0f; });
  add("constant", [](size_t) { return 3.14159f; });
  add("one spike", [](size_t i) { return i == 5 ? -1e30f : 1e-30f; });
  add("narrow", [](size_t i) { return 1000.0f + 1e-3f * static_cast<float>(i % 7); });
  add("ties", [](size_t i) { return static_cast<float>(i % 255) * 0.5f - 63.5f; });
  add("binades",
      [](size_t i) { return std::ldexp(i % 2 ? 1.0f : -1.25f, static_cast<int>(i % 250) - 125); });
  return inputs;
}

inline std::vector<uint8_t> encoded_of(const CodecSpec& spec, const std::vector<float>& values,
                                       int threads = 1) {
  const int64_t count = static_cast<int64_t>(values.size());
  std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(spec, count)));
  static_cast<void>(encode(spec, {values.data(), Dtype::kFloat32, count}, piece, threads));
  return piece;
}

inline std::vector<float> decoded_of(const CodecSpec& spec, const std::vector<uint8_t>& piece,
                                     int64_t count, int threads = 1) {
  std::vector<float> values(static_cast<size_t>(count));
  decode(spec, piece, {values.data(), Dtype::kFloat32, count}, threads);
  return values;
}

}  // namespace strait::codec
