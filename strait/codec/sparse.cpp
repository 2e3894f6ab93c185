#include "strait/codec/sparse.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "strait/base/random.h"
#include "strait/codec/element.h"

namespace strait::codec {
namespace {

/// The source in fp32, 0 for what is not finite, which is counted.
template <class T>
int64_t read_all(const T* x, std::vector<float>& values) {
  int64_t lost = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = read_float(x + i);
    const bool finite = std::isfinite(value);
    lost += !finite;
    values[i] = finite ? value : 0.0f;
  }
  return lost;
}

int64_t read_all(const ConstValues& source, std::vector<float>& values) {
  values.resize(static_cast<size_t>(source.elements));
  if (source.dtype == Dtype::kFloat32)
    return read_all(static_cast<const float*>(source.data), values);
  if (source.dtype == Dtype::kFloat64)
    return read_all(static_cast<const double*>(source.data), values);
  return read_all(static_cast<const uint16_t*>(source.data), values);
}

/// Sizes of finite floats order as these numbers do.
uint32_t size_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

/// The kth largest size, digit by digit from the highest, and how many are larger.
struct Threshold {
  uint32_t bits = 0;
  int64_t larger = 0;
};
Threshold find_threshold(const std::vector<float>& values, int64_t k) {
  Threshold found;
  uint32_t known = 0;  // mask of the digits that are found
  for (const auto& [shift, width] : {std::pair{20, 11}, std::pair{10, 10}, std::pair{0, 10}}) {
    std::array<int64_t, 2048> count{};
    const uint32_t digit = (1u << width) - 1;
    for (const float value : values)
      if ((size_bits(value) & known) == found.bits) ++count[size_bits(value) >> shift & digit];
    uint32_t at = digit;
    while (found.larger + count[at] < k) found.larger += count[at--];
    found.bits |= at << shift;
    known |= digit << shift;
  }
  return found;
}

void put(uint8_t* to, int64_t at, const auto& value) {
  std::memcpy(to + at * static_cast<int64_t>(sizeof(value)), &value, sizeof(value));
}
template <class T>
T get(const uint8_t* from, int64_t at) {
  T value;
  std::memcpy(&value, from + at * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

/// The largest in the order of their positions; of equal ones the first.
void put_largest(const std::vector<float>& values, int64_t k, uint8_t* encoded) {
  const Threshold least = find_threshold(values, k);
  int64_t at = 0, equal = k - least.larger;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t size = size_bits(values[i]);
    if (size < least.bits || (size == least.bits && equal-- <= 0)) continue;
    put(encoded, at, values[i]);
    put(encoded + 4 * k, at++, static_cast<uint32_t>(i));
  }
}

/// Position of the jth of k elements that are drawn of `elements`: one of the jth stretch.
int64_t drawn(uint64_t key, int64_t j, int64_t k, int64_t elements) {
  const auto border = [&](int64_t stretch) {
    return static_cast<int64_t>(static_cast<__int128>(elements) * stretch / k);
  };
  const int64_t begin = border(j), length = border(j + 1) - begin;
  const uint64_t bits = mix64(key ^ mix64(static_cast<uint64_t>(j)));
  return begin + static_cast<int64_t>(
                     static_cast<unsigned __int128>(bits) * static_cast<uint64_t>(length) >> 64);
}

template <class T>
void store(T& to, float value, bool add) {
  to = add ? to + static_cast<T>(value) : static_cast<T>(value);
}

template <class T>
void decode_as(const CodecSpec& spec, const uint8_t* encoded, int64_t elements, T* out, bool add) {
  if (is_dense(spec, elements)) {
    for (int64_t i = 0; i < elements; ++i) store(out[i], get<float>(encoded, i), add);
    return;
  }
  if (!add) std::fill_n(out, elements, T());
  const int64_t k = kept_elements(spec, elements);
  const bool largest = spec.kind == CodecKind::kTopK;
  const uint8_t* places = encoded + 4 * k;
  const uint64_t key = largest ? 0 : get<uint64_t>(places, 0);
  for (int64_t j = 0; j < k; ++j) {
    const int64_t i = largest ? get<uint32_t>(places, j) : drawn(key, j, k, elements);
    store(out[i], get<float>(encoded, j), add);
  }
}

}  // namespace

bool is_dense(const CodecSpec& spec, int64_t elements) {
  const int64_t k = kept_elements(spec, elements);
  return 4 * k + (spec.kind == CodecKind::kTopK ? 4 * k : 8) >= 4 * elements;
}

int64_t encode_sparse(const CodecSpec& spec, const ConstValues& source, uint8_t* encoded,
                      const Draw& draw) {
  std::vector<float> values;
  const int64_t lost = read_all(source, values);
  const int64_t k = kept_elements(spec, source.elements);
  if (is_dense(spec, source.elements)) {
    std::memcpy(encoded, values.data(), values.size() * sizeof(float));
  } else if (spec.kind == CodecKind::kTopK) {
    put_largest(values, k, encoded);
  } else {
    const uint64_t key = draw.bits(0);
    for (int64_t j = 0; j < k; ++j)
      put(encoded, j, values[static_cast<size_t>(drawn(key, j, k, source.elements))]);
    put(encoded + 4 * k, 0, key);
  }
  return lost;
}

void decode_sparse(const CodecSpec& spec, const uint8_t* encoded, const Values& out, bool add) {
  if (out.dtype == Dtype::kFloat32)
    return decode_as(spec, encoded, out.elements, static_cast<float*>(out.data), add);
  if (out.dtype == Dtype::kFloat64)
    return decode_as(spec, encoded, out.elements, static_cast<double*>(out.data), add);
  std::vector<float> values(static_cast<size_t>(out.elements));
  decode_as(spec, encoded, out.elements, values.data(), false);
  uint16_t* bits = static_cast<uint16_t*>(out.data);
  for (size_t i = 0; i < values.size(); ++i) bits[i] = to_bfloat16(values[i]);
}

}  // namespace strait::codec
