#include "strait/comm/mpi/host_board.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace strait::comm {
namespace {

struct Header {
  HostAlarm alarm;
  LastStep last_step;
  std::atomic<uint64_t> communicators[HostBoard::kChannels];
  HostSignal signals[HostBoard::kChannels];
};
constexpr int64_t kHeaderBytes = (sizeof(Header) + 4095) / 4096 * 4096;
constexpr int64_t kRowBytes = (sizeof(WaitRow) + 63) / 64 * 64;

Header& header(char* memory) { return *reinterpret_cast<Header*>(memory); }

template <size_t N>
void put(std::array<char, N>& target, std::string_view text) {
  const size_t length = std::min(text.size(), N - 1);
  std::memcpy(target.data(), text.data(), length);
  target[length] = 0;
}

}  // namespace

int64_t HostBoard::bytes(int64_t ranks) {
  return kHeaderBytes + ranks * kRowBytes +
         kChannels * ranks * static_cast<int64_t>(sizeof(HostSlot)) + 4096;
}

HostBoard::HostBoard(void* memory, int64_t ranks)
    : memory_(static_cast<char*>(memory)), ranks_(ranks) {}

int64_t HostBoard::channel(uint64_t communicator) {
  for (int64_t step = 0; step < kChannels; ++step) {
    const int64_t at =
        static_cast<int64_t>((communicator + static_cast<uint64_t>(step)) % kChannels);
    uint64_t holder = 0;
    std::atomic<uint64_t>& cell = header(memory_).communicators[at];
    if (cell.compare_exchange_strong(holder, communicator) || holder == communicator) return at;
  }
  throw InternalError("more than " + std::to_string(kChannels) + " communicators on one host");
}

HostSignal& HostBoard::signal(int64_t channel) const { return header(memory_).signals[channel]; }

WaitRow& HostBoard::row(int64_t place) const {
  return *reinterpret_cast<WaitRow*>(memory_ + kHeaderBytes + place * kRowBytes);
}

LastStep& HostBoard::last_step() const { return header(memory_).last_step; }

int64_t HostBoard::settle_last_step() const {
  return last_step().settle([&] {
    WaitRows rows;
    for (int64_t place = 0; place < ranks_; ++place) rows.push_back(&row(place));
    return most_steps_begun(rows);
  });
}

HostSlot& HostBoard::slot(int64_t channel, int64_t place) const {
  const int64_t begin = (kHeaderBytes + ranks_ * kRowBytes + 63) / 64 * 64;
  return *reinterpret_cast<HostSlot*>(
      memory_ + begin + (channel * ranks_ + place) * static_cast<int64_t>(sizeof(HostSlot)));
}

HostAlarm& HostBoard::alarm() const { return header(memory_).alarm; }

bool HostBoard::ring(int64_t rank, const std::string& reason, const ErrorPlace& place,
                     Cause cause) {
  HostAlarm& own = alarm();
  uint32_t quiet = 0;
  if (!own.state.compare_exchange_strong(quiet, 1)) return false;
  own.rank = rank;
  own.blamed = place.rank.value_or(-1);
  own.step = place.step.value_or(-1);
  own.cause = cause;
  put(own.reason, reason);
  put(own.operation, place.operation.value_or(""));
  own.state.store(2, std::memory_order_release);
  for (int64_t each = 0; each < ranks_; ++each) row(each).freeze();
  for (int64_t at = 0; at < kChannels; ++at)
    if (header(memory_).communicators[at].load() != 0) signal(at).notify();
  return true;
}

HostBoard::Rung HostBoard::rung_by() const {
  const HostAlarm& own = alarm();
  Rung result{own.rank, own.reason.data(), {}, own.cause};
  if (own.blamed >= 0) result.place.rank = own.blamed;
  if (own.step >= 0) result.place.step = own.step;
  if (own.operation[0] != 0) result.place.operation = own.operation.data();
  return result;
}

}  // namespace strait::comm
