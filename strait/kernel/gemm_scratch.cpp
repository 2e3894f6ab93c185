#include "strait/kernel/gemm_scratch.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace strait::kernel {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
struct Scratch {
  std::unique_ptr<void, Free> memory;
  int64_t capacity = 0;
};

}  // namespace

void* thread_scratch(ScratchUse use, int64_t bytes) {
  constexpr int64_t kPage = 4096;
  thread_local std::array<Scratch, 2> scratches;
  Scratch& scratch = scratches[static_cast<size_t>(use)];
  if (bytes > scratch.capacity) {
    scratch.capacity = (bytes + kPage - 1) / kPage * kPage;
    scratch.memory.reset();
    scratch.memory.reset(std::aligned_alloc(kPage, static_cast<size_t>(scratch.capacity)));
    if (!scratch.memory) {
      scratch.capacity = 0;
      throw std::bad_alloc();
    }
    // Pages that nobody has touched are expensive to prefetch from, again and again.
    std::memset(scratch.memory.get(), 0, static_cast<size_t>(scratch.capacity));
  }
  return scratch.memory.get();
}

}  // namespace strait::kernel
