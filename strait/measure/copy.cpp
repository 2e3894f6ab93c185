// The streaming loop is compiled once per instruction set by Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/measure/copy.cpp"
#include "strait/measure/copy.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "strait/base/errors.h"
#include "strait/measure/timing.h"
#include "strait/report/statistics.h"

HWY_BEFORE_NAMESPACE();
namespace strait::measure {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void stream(const uint8_t* source, uint8_t* destination, size_t bytes) {
  const hn::ScalableTag<uint64_t> d;
  const size_t step = hn::Lanes(d) * sizeof(uint64_t);
  size_t i = 0;
  for (; i + 4 * step <= bytes; i += 4 * step) {
    for (size_t k = 0; k < 4; ++k) {
      const auto v = hn::Load(d, reinterpret_cast<const uint64_t*>(source + i + k * step));
      hn::Stream(v, d, reinterpret_cast<uint64_t*>(destination + i + k * step));
    }
  }
  std::memcpy(destination + i, source + i, bytes - i);
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace strait::measure
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::measure {
HWY_EXPORT(stream);

void streaming_copy(const void* source, void* destination, int64_t bytes) {
  HWY_DYNAMIC_DISPATCH(stream)
  (static_cast<const uint8_t*>(source), static_cast<uint8_t*>(destination),
   static_cast<size_t>(bytes));
}

CopyBuffers::CopyBuffers(RankTeam& team, int64_t bytes)
    : team_(team), bytes_(bytes), sources_(team.ranks()), destinations_(team.ranks()) {
  team_.run([&](int64_t rank) {
    for (auto* buffers : {&sources_, &destinations_}) {
      (*buffers)[rank] = static_cast<uint8_t*>(::operator new (bytes, std::align_val_t{64}));
    }
    for (int64_t i = 0; i < bytes; ++i) sources_[rank][i] = static_cast<uint8_t>(i * 31 + rank);
    std::memset(destinations_[rank], 0x5a, bytes);
  });
}

CopyBuffers::~CopyBuffers() {
  for (const auto* buffers : {&sources_, &destinations_}) {
    for (uint8_t* buffer : *buffers) ::operator delete (buffer, std::align_val_t{64});
  }
}

double CopyBuffers::copy(bool streaming, int64_t repeats) {
  const double seconds = team_.run([&](int64_t rank) {
    for (int64_t i = 0; i < repeats; ++i) {
      if (streaming) {
        streaming_copy(sources_[rank], destinations_[rank], bytes_);
      } else {
        std::memcpy(destinations_[rank], sources_[rank], static_cast<size_t>(bytes_));
        // Or the compiler may drop all copies but the last.
        asm volatile("" : : "r"(destinations_[rank]) : "memory");
      }
    }
  });
  return seconds / static_cast<double>(repeats);
}

double CopyBuffers::best_copy(int64_t repeats) {
  return std::min(copy(false, repeats), copy(true, repeats));
}

bool CopyBuffers::equal() const {
  for (size_t rank = 0; rank < sources_.size(); ++rank) {
    if (std::memcmp(sources_[rank], destinations_[rank], bytes_) != 0) return false;
  }
  return true;
}

double CopyBuffers::moved_bytes() const {
  return 2.0 * static_cast<double>(bytes_) * static_cast<double>(sources_.size());
}

double CopyRates::best() const {
  return std::max(memcpy_bytes_per_second, streaming_bytes_per_second);
}

CopyRates measure_copy(RankTeam& team, int64_t bytes, int64_t runs) {
  for (const bool streaming : {false, true}) {
    CopyBuffers buffers(team, bytes);
    buffers.copy(streaming);
    ensure(buffers.equal(), "measure_copy: a copy differs from its source");
  }
  CopyBuffers buffers(team, bytes);
  const double moved = buffers.moved_bytes();
  const std::vector<Timings> timings =
      time_interleaved({{"memcpy", "", [&] { return buffers.copy(false); }, ""},
                        {"streaming", "", [&] { return buffers.copy(true); }, ""}},
                       {.warmups = 1, .runs = runs});
  return {moved / report::statistics_of(timings[0].seconds).median,
          moved / report::statistics_of(timings[1].seconds).median};
}

}  // namespace strait::measure
#endif
