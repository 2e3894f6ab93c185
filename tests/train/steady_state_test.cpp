// A step in the steady state allocates nothing: its buffers come from the pool, the pool takes nothing from the
// system, and no container grows.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "strait/train/solo_step.h"

namespace {
std::atomic<int64_t> allocations{0};  // by any thread of this program

void* allocate(std::size_t size, std::size_t alignment) {
  ++allocations;
  const std::size_t whole = (size + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, whole)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace strait::train {
namespace {

Run small_step(const std::string& precision, const std::string& recompute) {
  Run run;
  run.model = model_preset("nano-char");
  run.model.shape.context = 16;
  run.train.global_batch_size = 2;
  run.train.precision = precision;
  run.train.recompute = recompute;
  run.runtime.threads_per_rank = 2;
  return run;
}

TEST(SteadyState, AllocatesNothing) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* recompute : {"none", "block"}) {
      SCOPED_TRACE(std::string(precision) + " " + recompute);
      SoloStep solo(small_step(precision, recompute), 65);
      for (int step = 0; step < 2; ++step) solo.step();
      const int64_t first = solo.pool().system_allocations(), peak = solo.pool().peak_bytes();
      EXPECT_GT(first, 0);
      const int64_t before = allocations.load();
      EXPECT_GT(before, 0);
      for (int step = 0; step < 3; ++step) solo.step();
      EXPECT_EQ(allocations.load(), before);
      EXPECT_EQ(solo.pool().system_allocations(), first);
      EXPECT_EQ(solo.pool().peak_bytes(), peak);
    }
  }
}

}  // namespace
}  // namespace strait::train
