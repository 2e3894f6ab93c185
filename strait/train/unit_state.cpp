#include "strait/train/unit_state.h"

#include <cstddef>
#include <span>

#include "strait/base/errors.h"
#include "strait/model/block.h"
#include "strait/strategy/finish/kernels.h"

namespace strait::train {
namespace {

Range held_range(const program::Program& program, const program::ValueArray& array, int64_t rank) {
  const int64_t begin = program::value_begin(program, array, rank);
  return {begin, begin + program::value_elements(program, array, rank)};
}

}  // namespace

std::vector<StatePart> state_parts(const program::Program& train, runtime::State& state) {
  std::vector<StatePart> parts;
  const int64_t rank = state.rank();
  program::for_each_instance(train, [&](const program::Op& op, const program::Loops& loops) {
    if (op.kernel != &strategy::kUpdate) return;
    for (const program::Operand& operand : op.writes) {
      const program::ValueArray& array = train.arrays[operand.array];
      const int64_t index = program::evaluate(operand.index, loops);
      StatePart part;
      part.unit = array.address.unit + index;
      part.state = array.address.state;
      part.dtype = array.dtype;
      part.held = held_range(train, array, rank);
      part.saved = counted_range(train, op, rank);
      part.data = state.array(array.name).buffers[static_cast<size_t>(index)];
      parts.push_back(std::move(part));
    }
  });
  return parts;
}

namespace {

/// Calls fill(memory) for `bytes` bytes of host memory that end up at `data` of the device.
template <class Fill>
void fill_from_host(tensor::Device* device, void* data, int64_t bytes, const Fill& fill) {
  if (!device) return fill(static_cast<std::byte*>(data));
  std::vector<std::byte> image(static_cast<size_t>(bytes));
  fill(image.data());
  tensor::copy_bytes(device, image.data(), data, bytes);
}

}  // namespace

void initialize_parts(const std::vector<StatePart>& parts, const ModelShape& shape, uint64_t seed,
                      tensor::Device* device) {
  for (const StatePart& part : parts) {
    if (part.state != checkpoint::kMaster) continue;
    const int64_t bytes = part.held.size() * dtype_bytes(part.dtype);
    fill_from_host(device, part.data, bytes, [&](std::byte* memory) {
      model::initialize(shape.units[part.unit], seed, part.dtype, part.held.begin, part.held.end,
                        memory);
    });
  }
}

void load_parts(const std::vector<StatePart>& parts, const ModelShape& shape,
                const checkpoint::CheckpointReader& reader, tensor::Device* device) {
  std::vector<checkpoint::LoadRequest> requests;
  HostImages images;
  for (const StatePart& part : parts) {
    const checkpoint::StateRange range{shape.units[part.unit].name, part.state, part.held.begin,
                                       part.held.end, part.dtype};
    const size_t bytes = static_cast<size_t>(part.held.size() * dtype_bytes(part.dtype));
    std::byte* memory = static_cast<std::byte*>(part.data);
    if (device) memory = images.emplace_back(bytes).data();
    requests.push_back({range, std::span(memory, bytes)});
  }
  reader.load(requests);
  for (size_t at = 0; at < images.size(); ++at)
    tensor::copy_bytes(device, images[at].data(), parts[at].data,
                       static_cast<int64_t>(images[at].size()));
}

std::vector<checkpoint::ShardView> saved_shards(const std::vector<StatePart>& parts,
                                                const ModelShape& shape, tensor::Device* device,
                                                HostImages& images) {
  std::vector<checkpoint::ShardView> shards;
  for (const StatePart& part : parts) {
    const checkpoint::StateRange range{shape.units[part.unit].name, part.state, part.saved.begin,
                                       part.saved.end, part.dtype};
    const int64_t offset = (part.saved.begin - part.held.begin) * dtype_bytes(part.dtype);
    const char* data = static_cast<const char*>(part.data) + offset;
    if (device) {
      const int64_t bytes = part.saved.size() * dtype_bytes(part.dtype);
      std::vector<std::byte>& image = images.emplace_back(static_cast<size_t>(bytes));
      tensor::copy_bytes(device, data, image.data(), bytes);
      data = reinterpret_cast<const char*>(image.data());
    }
    shards.push_back({range, data});
  }
  return shards;
}

}  // namespace strait::train
