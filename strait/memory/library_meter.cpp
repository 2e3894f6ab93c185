#include "strait/memory/library_meter.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/version.h>

namespace strait::memory {
namespace {

#if TORCH_VERSION_MAJOR >= 2
using Total = size_t;
#else
using Total = int64_t;
#endif

struct Counter : c10::MemoryReportingInfoBase {
  explicit Counter(Pool& pool) : pool_(pool) {}
  ~Counter() override { pool_.count(-live_); }

  void reportMemoryUsage(void*, int64_t bytes, Total, Total, c10::Device) override {
    live_ += bytes;
    pool_.count(bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  Pool& pool_;
  int64_t live_ = 0;
};

struct Meter final : LibraryMeter {
  explicit Meter(Pool& pool)
      : guard(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Counter>(pool)) {}
  c10::DebugInfoGuard guard;
};

const Provides kMeter(
    meter_library,
    +[](Pool& pool) -> std::unique_ptr<LibraryMeter> { return std::make_unique<Meter>(pool); });

}  // namespace
}  // namespace strait::memory
