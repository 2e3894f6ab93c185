// Memory between guard bytes, to catch writes outside of it.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

namespace strait::model {

/// `bytes` bytes, 64-byte aligned, filled with NaN; `intact` tells whether the guards around still
/// stand.
class Guarded {
 public:
  explicit Guarded(int64_t bytes)
      : bytes_(bytes), memory_(static_cast<size_t>(bytes) + 2 * kGuard + 64) {
    std::memset(memory_.data(), kPattern, memory_.size());
    const auto address = reinterpret_cast<uintptr_t>(memory_.data()) + kGuard;
    start_ = memory_.data() + (kGuard + (64 - address % 64) % 64);
    std::memset(start_, 0xff, static_cast<size_t>(bytes));  // all ones is a NaN in both widths
  }
  void* data() { return start_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(start_);
  }
  bool intact() const {
    for (const uint8_t* p = memory_.data(); p < start_; ++p) {
      if (*p != kPattern) return false;
    }
    for (const uint8_t* p = start_ + bytes_; p < memory_.data() + memory_.size(); ++p) {
      if (*p != kPattern) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr uint8_t kPattern = 0x5a;
  int64_t bytes_;
  std::vector<uint8_t> memory_;
  uint8_t* start_ = nullptr;
};

}  // namespace strait::model
