#include "strait/kernel/gemm_scratch.h"

#include <cstdlib>
#include <memory>
#include <new>

namespace strait::kernel {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

}  // namespace

void* gemm_scratch(int64_t bytes) {
  constexpr int64_t kPage = 4096;
  thread_local std::unique_ptr<void, Free> memory;
  thread_local int64_t capacity = 0;
  if (bytes > capacity) {
    capacity = (bytes + kPage - 1) / kPage * kPage;
    memory.reset();
    memory.reset(std::aligned_alloc(kPage, static_cast<size_t>(capacity)));
    if (!memory) {
      capacity = 0;
      throw std::bad_alloc();
    }
  }
  return memory.get();
}

}  // namespace strait::kernel
