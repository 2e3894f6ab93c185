#include "strait/runtime/state.h"

#include <fmt/format.h>

#include "strait/base/errors.h"
#include "strait/program/transfer.h"
#include "strait/tensor/device.h"

namespace strait::runtime {

memory::Reach reach_of(const program::ValueArray& array, bool transferred) {
  if (array.tier == program::Tier::kHost) return memory::Reach::kHost;
  return transferred ? memory::Reach::kShared : memory::Reach::kOwn;
}

void Carries::settle() noexcept {
  for (comm::Ticket& ticket : tickets) {
    try {
      ticket.wait();
    } catch (const std::exception&) {  // whoever needs the value hears of it
    }
  }
  tickets.clear();
}

State::~State() { release(""); }

void State::release(const std::string& prefix) {
  for (auto entry = arrays_.begin(); entry != arrays_.end();) {
    if (!entry->first.starts_with(prefix)) {
      ++entry;
      continue;
    }
    for (Carries& carries : entry->second.carries) carries.settle();
    for (void* buffer : entry->second.buffers) pool_.release(buffer);
    entry = arrays_.erase(entry);
  }
}

void State::bind(const program::Program& program) {
  const std::vector<bool> transferred = program::transferred_arrays(program);
  for (size_t number = 0; number < program.arrays.size(); ++number) {
    const program::ValueArray& array = program.arrays[number];
    if (array.lifetime == program::Lifetime::kTransient) continue;
    const int64_t bytes = program::value_bytes(program, array, rank_);
    const auto found = arrays_.find(array.name);
    if (found != arrays_.end()) {
      const ResidentArray& existing = found->second;
      if (existing.bytes != bytes || static_cast<int64_t>(existing.buffers.size()) != array.count)
        throw InternalError(
            fmt::format("resident value {} has {} x {} bytes, program {}/{} wants {} x {}",
                        array.name, existing.buffers.size(), existing.bytes, program.name,
                        program.step_kind, array.count, bytes));
      continue;
    }
    ResidentArray& created = arrays_[array.name];
    created.bytes = bytes;
    created.tier = array.tier;
    created.carries.resize(static_cast<size_t>(array.count));
    for (int64_t i = 0; i < array.count; ++i) {
      void* buffer = pool_.allocate(bytes, reach_of(array, transferred[number]));
      tensor::fill_zero(device_of(created), buffer, bytes);
      created.buffers.push_back(buffer);
    }
  }
}

ResidentArray& State::array(const std::string& name) {
  const auto found = arrays_.find(name);
  if (found == arrays_.end()) throw InternalError("no resident value is named " + name);
  return found->second;
}

tensor::Device* State::device_of(const ResidentArray& array) const {
  return array.tier == program::Tier::kHost ? nullptr : pool_.device();
}

void State::read(const std::string& name, void* to, int64_t bytes) {
  const ResidentArray& values = array(name);
  ensure(bytes <= values.bytes, "State::read: more than there is");
  tensor::copy_bytes(device_of(values), values.buffers.at(0), to, bytes);
}

void State::write(const std::string& name, const void* from, int64_t bytes) {
  const ResidentArray& values = array(name);
  ensure(bytes <= values.bytes, "State::write: more than there is");
  tensor::copy_bytes(device_of(values), from, values.buffers.at(0), bytes);
}

void State::drain() {
  for (auto& [name, array] : arrays_) {
    for (Carries& carries : array.carries) {
      for (comm::Ticket& ticket : carries.tickets) ticket.wait();
      carries.tickets.clear();
    }
  }
}

}  // namespace strait::runtime
