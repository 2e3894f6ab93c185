// Named, counter-based random streams: a value depends only on (seed, purpose, indices, counter),
// never on the order of calls, on threads or on layout.
#pragma once

#include <cstdint>
#include <string_view>

namespace strait {

/// Mixes 64 bits (the finaliser of SplitMix64, Steele et al. 2014).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// FNV-1a of a name, to key streams by purpose.
constexpr uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
}

/// A stream of random numbers addressed by a counter. Copyable, stateless, thread-safe.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view purpose, uint64_t first = 0, uint64_t second = 0)
      : key_(mix64(mix64(mix64(mix64(seed) ^ hash_name(purpose)) ^ first) ^ second)) {}

  uint64_t key() const { return key_; }
  uint64_t bits(uint64_t counter) const { return mix64(key_ ^ mix64(counter)); }
  /// Uniform in [0, 1) with 53 bits.
  double uniform(uint64_t counter) const {
    return static_cast<double>(bits(counter) >> 11) * 0x1.0p-53;
  }
  /// Uniform in {0, ..., bound - 1}; bound >= 1. Multiply-shift; bias below bound / 2^64.
  uint64_t below(uint64_t counter, uint64_t bound) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(bits(counter)) * bound) >> 64);
  }
  /// Standard normal by Box-Muller from counters 2c and 2c + 1.
  double normal(uint64_t counter) const;

 private:
  uint64_t key_;
};

/// A pseudo-random permutation of {0, ..., size - 1} with O(1) random access: a four-round Feistel
/// network on the enclosing power of four, cycle-walked. Deterministic in (stream, size).
class Permutation {
 public:
  Permutation(RandomStream stream, uint64_t size);
  uint64_t size() const { return size_; }
  /// Image of `index` < size.
  uint64_t operator()(uint64_t index) const;

 private:
  RandomStream stream_;
  uint64_t size_;
  int half_bits_;
};

}  // namespace strait
