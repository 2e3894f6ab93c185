#include "strait/persist/run_values.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "strait/base/errors.h"

namespace strait::persist {

RunValues::RunValues(const program::Program& step, runtime::State& state) {
  for (const program::ValueArray& array : step.arrays) {
    if (array.address.state.empty() || array.address.unit >= 0) continue;
    const runtime::ResidentArray& resident = state.array(array.name);
    ensure(array.group < 0 && state.device_of(resident) == nullptr,
           "run values: a value of the run is in parts, or on a device");
    for (int64_t i = 0; i < array.count && array.partition.elements > 0; ++i) {
      const std::string number = array.count > 1 ? "/" + std::to_string(i) : "";
      values_.push_back({array.address.state + number, array.dtype, array.partition.elements,
                         resident.buffers[static_cast<size_t>(i)]});
    }
  }
}

void RunValues::load(const checkpoint::CheckpointReader& reader) const {
  std::vector<checkpoint::LoadRequest> requests;
  for (const Value& value : values_) {
    const int64_t stored = reader.manifest().elements_of(value.range(0)).value_or(0);
    const int64_t count = std::min(stored, value.elements);
    const auto bytes = static_cast<size_t>(count * dtype_bytes(value.dtype));
    if (count > 0)
      requests.push_back(
          {value.range(count), std::span(static_cast<std::byte*>(value.data), bytes)});
  }
  reader.load(requests);
}

std::vector<checkpoint::ValueRecord> RunValues::records() const {
  std::vector<checkpoint::ValueRecord> records;
  for (const Value& value : values_) records.push_back({value.state, value.elements});
  return records;
}

std::vector<checkpoint::ShardView> RunValues::shards() const {
  std::vector<checkpoint::ShardView> shards;
  for (const Value& value : values_) shards.push_back({value.range(value.elements), value.data});
  return shards;
}

}  // namespace strait::persist
