#include "strait/trace/flight.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace strait::trace {

std::array<int64_t, OperationText::kLoops> OperationText::pick(
    const std::vector<int64_t>& all) const {
  std::array<int64_t, kLoops> values{};
  for (size_t i = 0; i < loops.size(); ++i) values[i] = all[loops[i]];
  return values;
}

int64_t OperationText::Index::at(const std::array<int64_t, kLoops>& values) const {
  const int64_t sum = constant + scale * values[loop] + other_scale * values[other_loop];
  return modulo > 0 ? sum % modulo : sum;
}

size_t OperationText::write(const std::array<int64_t, kLoops>& values, char* out,
                            size_t size) const {
  size_t length = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const size_t take = std::min(pieces[i].size(), size - length);
    std::memcpy(out + length, pieces[i].data(), take);
    length += take;
    if (i >= indices.size()) continue;
    const auto end = std::to_chars(out + length, out + size, indices[i].at(values));
    if (end.ec == std::errc()) length = static_cast<size_t>(end.ptr - out);
  }
  return length;
}

std::string OperationText::str(const std::array<int64_t, kLoops>& values) const {
  size_t size = 0;
  for (const std::string& piece : pieces) size += piece.size() + 24;
  std::string text(size, '\0');
  text.resize(write(values, text.data(), size));
  return text;
}

const char* flight_state_name(FlightState state) {
  switch (state) {
    case FlightState::kIssued:
      return "issued";
    case FlightState::kRunning:
      return "running";
    case FlightState::kDone:
      return "done";
    case FlightState::kFailed:
      return "failed";
  }
  return "?";
}

FlightRecord::FlightRecord() : slots_(std::make_unique<FlightMark::Slot[]>(kSlots)) {}

int FlightRecord::add(FlightOperation operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  operations_.push_back(std::make_shared<const FlightOperation>(std::move(operation)));
  return static_cast<int>(operations_.size()) - 1;
}

FlightMark FlightRecord::issue(int operation, int64_t step, int64_t index,
                               const std::array<int64_t, OperationText::kLoops>& loops,
                               double now) {
  constexpr auto kRelease = std::memory_order_release;
  const int64_t number = issued_.load(std::memory_order_relaxed);
  FlightMark::Slot& slot = slots_[number % kSlots];
  slot.number.store(-1, std::memory_order_relaxed);
  // Release, one by one: who reads a new value also sees that the slot is in change.
  slot.operation.store(operation, kRelease);
  slot.step.store(step, kRelease);
  slot.index.store(index, kRelease);
  for (size_t i = 0; i < loops.size(); ++i) slot.loops[i].store(loops[i], kRelease);
  slot.issued.store(now, kRelease);
  slot.started.store(0, kRelease);
  slot.ended.store(0, kRelease);
  slot.state.store(FlightState::kIssued, kRelease);
  slot.number.store(number, kRelease);
  issued_.store(number + 1, kRelease);
  return {&slot, number};
}

std::vector<FlightEntry> FlightRecord::entries() const {
  constexpr auto kAcquire = std::memory_order_acquire;
  std::vector<std::shared_ptr<const FlightOperation>> operations;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    operations = operations_;
  }
  std::vector<FlightEntry> entries;
  const int64_t end = issued_.load(kAcquire);
  for (int64_t number = std::max<int64_t>(0, end - kEntries); number < end; ++number) {
    const FlightMark::Slot& slot = slots_[number % kSlots];
    if (slot.number.load(kAcquire) != number) continue;
    FlightEntry entry;
    entry.number = number;
    const int64_t operation = slot.operation.load(kAcquire);
    entry.step = slot.step.load(kAcquire);
    entry.index = slot.index.load(kAcquire);
    std::array<int64_t, OperationText::kLoops> loops{};
    for (size_t i = 0; i < loops.size(); ++i) loops[i] = slot.loops[i].load(kAcquire);
    entry.issued = slot.issued.load(kAcquire);
    entry.state = slot.state.load(kAcquire);
    entry.started = slot.started.load(kAcquire);
    entry.ended = slot.ended.load(kAcquire);
    if (slot.number.load(std::memory_order_relaxed) != number ||
        operation >= static_cast<int64_t>(operations.size()))
      continue;
    const FlightOperation& what = *operations[operation];
    entry.operation = what.text.str(loops);
    entry.stream = what.stream;
    entry.group = what.group;
    entry.bytes = what.bytes;
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace strait::trace
