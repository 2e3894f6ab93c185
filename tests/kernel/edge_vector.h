// Vectors that end where a page nobody may touch begins, so that a read behind them is a fault.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <vector>

namespace strait::kernel {

template <class T>
struct EdgeAllocator {
  using value_type = T;
  static constexpr size_t kPage = 4096;
  EdgeAllocator() = default;
  template <class U>
  EdgeAllocator(const EdgeAllocator<U>&) {}

  static size_t whole_pages(size_t count) {
    return (count * sizeof(T) + kPage - 1) / kPage * kPage;
  }
  T* allocate(size_t count) {
    const size_t pages = whole_pages(count);
    void* const begin =
        ::mmap(nullptr, pages + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED) throw std::bad_alloc();
    std::byte* const end = static_cast<std::byte*>(begin) + pages;
    if (::mprotect(end, kPage, PROT_NONE) != 0) throw std::bad_alloc();
    return reinterpret_cast<T*>(end - count * sizeof(T));
  }
  void deallocate(T* data, size_t count) {
    const size_t pages = whole_pages(count);
    ::munmap(reinterpret_cast<std::byte*>(data + count) - pages, pages + kPage);
  }
  bool operator==(const EdgeAllocator&) const = default;
};

template <class T>
using EdgeVector = std::vector<T, EdgeAllocator<T>>;

}  // namespace strait::kernel
