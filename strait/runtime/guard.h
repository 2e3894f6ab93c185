// Holds kernels to their table entries while they run: what an op does not declare is out of reach,
// what it only reads cannot be written, and what it writes holds noise before. For tests (preset
// `guard`); costs two executions and some system calls per op. Plain memory on Linux only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strait/runtime/executors.h"

namespace strait::runtime {

/// Whether interpreters guard by default: the build says so.
#ifdef STRAIT_GUARD
inline constexpr bool kGuarded = true;
#else
inline constexpr bool kGuarded = false;
#endif

/// One rank's. Not thread-safe, but several may be at work in one process.
class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// A value that lives while an op runs, with its name; no transfer in flight touches it.
  struct Value {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    int array = 0;
    int64_t index = 0;
  };
  /// Forgets the values of the op before.
  void begin() { values_.clear(); }
  /// Buffers share no page (memory::Pool::separate_pages).
  void add(const Value& value) { values_.push_back(value); }
  /// Executes the op among the values added. InternalError naming op and value when it reads or
  /// writes what it does not declare, writes what it only reads, or reads what it declares as
  /// written.
  void run(const Execute& execute, const Instance& instance, int64_t workspace_bytes);

  /// For the signal's handler: true when `address` is guarded here; lets the access pass and notes
  /// it.
  bool pass(const void* address, bool writes);

 private:
  class Replay;
  enum class Reach : uint8_t { kNone, kReadable, kAll };
  Reach reach_of(const Value& value, const Instance& instance) const;
  void protect(const Instance& instance);
  void release();
  void execute_protected(const Execute& execute, const Instance& instance);
  void complain(const Instance& instance) const;

  const std::unique_ptr<Replay> replay_;
  std::vector<Value> values_;
  std::vector<Reach> reach_;       // by value
  volatile int64_t touched_ = -1;  // value
  volatile bool wrote_ = false;
};

}  // namespace strait::runtime
