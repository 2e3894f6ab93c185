// Hash tables with open addressing for the two look-ups that byte-pair encoding lives on: a pair of
// tokens and a piece of text. They grow, they never erase.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "strait/base/random.h"

namespace strait {

/// What the two tables share. `Key` is comparable, `Hash` maps it to 64 bits; values are >= 0.
template <class Key, class Hash>
class FlatTable {
 public:
  FlatTable() : slots_(kFirstSlots) {}

  /// Value of `key`, or -1.
  int32_t find(const Key& key) const { return slots_[slot_of(slots_, key)].value; }

  /// Value of `key`, after inserting `value` when there was none. Amortised O(1).
  int32_t find_or_insert(const Key& key, int32_t value) {
    size_t slot = slot_of(slots_, key);
    if (slots_[slot].value >= 0) return slots_[slot].value;
    if (2 * ++size_ > slots_.size()) {
      grow();
      slot = slot_of(slots_, key);
    }
    slots_[slot] = {key, value};
    return value;
  }

  size_t size() const { return size_; }

 private:
  static constexpr size_t kFirstSlots = 1024;  // a power of two, as all sizes are
  struct Slot {
    Key key{};
    int32_t value = -1;  // -1 = free
  };

  static size_t slot_of(const std::vector<Slot>& slots, const Key& key) {
    size_t slot = Hash()(key) & (slots.size() - 1);
    while (slots[slot].value >= 0 && !(slots[slot].key == key))
      slot = (slot + 1) & (slots.size() - 1);
    return slot;
  }

  void grow() {
    std::vector<Slot> larger(2 * slots_.size());
    for (const Slot& slot : slots_)
      if (slot.value >= 0) larger[slot_of(larger, slot.key)] = slot;
    slots_.swap(larger);
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

struct PairHash {
  uint64_t operator()(uint64_t key) const { return mix64(key); }
};
struct PieceHash {
  uint64_t operator()(std::string_view piece) const {
    return XXH3_64bits(piece.data(), piece.size());
  }
};

/// Keyed by pair_key of two tokens.
using PairTable = FlatTable<uint64_t, PairHash>;
/// Keyed by text that must outlive the table.
using PieceTable = FlatTable<std::string_view, PieceHash>;

/// Both tokens >= 0.
constexpr uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace strait
