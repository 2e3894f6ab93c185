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

  /// Takes the entries out of a text, from left to right and the longest first: `part(stretch)`
  /// with what is between them, possibly empty, each followed by `take(token)` but the last.
  template <class Part, class Take>
  void cut(std::string_view text, const Part& part, const Take& take) const {
    size_t begin = 0;
    for (size_t at = 0; at < text.size() && !entries_.empty();) {
      size_t longest = 0;
      int32_t token = 0;
      each_prefix(text.substr(at), [&](size_t length, int32_t found) {
        longest = length;
        token = found;
      });
      if (longest == 0) {
        ++at;
        continue;
      }
      part(text.substr(begin, at - begin));
      take(token);
      begin = at += longest;
    }
    part(text.substr(begin));
  }

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
