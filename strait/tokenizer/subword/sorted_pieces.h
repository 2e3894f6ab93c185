// Texts in order, for all those that begin another text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace strait::subword {

/// Immutable once made; the texts it was made from must outlive it.
class SortedPieces {
 public:
  using Entry = std::pair<std::string_view, int32_t>;

  /// Distinct texts that are not empty, each with its token.
  explicit SortedPieces(std::vector<Entry> entries = {}) : entries_(std::move(entries)) {
    std::sort(entries_.begin(), entries_.end());
    if (entries_.empty()) return;
    for (int byte = 0; byte <= 256; ++byte)
      starts_.push_back(narrowed(0, entries_.size(), 0, byte).first);
  }

  /// Calls `take(length, token)` for each entry that `text` begins with, the shortest first.
  /// Cost: O(length of the longest * log entries).
  template <class Take>
  void each_prefix(std::string_view text, const Take& take) const {
    if (entries_.empty() || text.empty()) return;
    const auto first = static_cast<uint8_t>(text[0]);
    size_t begin = starts_[first], end = starts_[first + 1];
    for (size_t length = 1; begin < end; ++length) {
      if (entries_[begin].first.size() == length) take(length, entries_[begin++].second);
      if (length == text.size()) return;
      std::tie(begin, end) = narrowed(begin, end, length, static_cast<uint8_t>(text[length]));
    }
  }

  bool empty() const { return entries_.empty(); }

 private:
  /// Of entries [begin, end), which are longer than `depth`, those that have `byte` there.
  std::pair<size_t, size_t> narrowed(size_t begin, size_t end, size_t depth, int byte) const {
    const auto at = [&](const Entry& entry) { return static_cast<uint8_t>(entry.first[depth]); };
    const auto first = entries_.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = entries_.begin() + static_cast<std::ptrdiff_t>(end);
    const auto low =
        std::partition_point(first, last, [&](const Entry& e) { return at(e) < byte; });
    const auto high =
        std::partition_point(low, last, [&](const Entry& e) { return at(e) <= byte; });
    return {static_cast<size_t>(low - entries_.begin()),
            static_cast<size_t>(high - entries_.begin())};
  }

  std::vector<Entry> entries_;
  std::vector<size_t> starts_;  // of each first byte
};

}  // namespace strait::subword
