// Bytes that ranks send, as tests write the specification's tables: payload and metadata by
// operation and level.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <utility>

namespace strait::test {

struct Sent {
  int64_t payload = 0, metadata = 0;
  bool operator==(const Sent&) const = default;
  Sent times(int64_t n) const { return {payload * n, metadata * n}; }
  Sent& operator+=(const Sent& other) {
    payload += other.payload;
    metadata += other.metadata;
    return *this;
  }
};
inline std::ostream& operator<<(std::ostream& out, const Sent& sent) {
  return out << sent.payload << "+" << sent.metadata;
}
/// Summed over all ranks; by operation and level.
using Bytes = std::map<std::pair<std::string, int64_t>, Sent>;

inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }
/// `elements` in the codecs of the presets, int8/2048 and int4/128.
inline Sent int8(int64_t elements) { return {elements, 4 * up(elements, 2048)}; }
inline Sent int4(int64_t elements) { return {up(elements, 2), 4 * up(elements, 128)}; }

}  // namespace strait::test
