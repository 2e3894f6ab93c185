// Counts what a test program allocates with `new`, on any thread. To be included in one source of a
// program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace strait::test {

inline std::atomic<int64_t> allocations{0};

inline void* counted_allocation_or_null(std::size_t size, std::size_t alignment) {
  ++allocations;
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

inline void* counted_allocation(std::size_t size, std::size_t alignment) {
  if (void* memory = counted_allocation_or_null(size, alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace strait::test

void* operator new(std::size_t size) {
  return strait::test::counted_allocation(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return strait::test::counted_allocation(size, static_cast<std::size_t>(alignment));
}
// Of these, sanitizers have their own, whose memory the operators below may not free.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return strait::test::counted_allocation_or_null(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return strait::test::counted_allocation_or_null(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
