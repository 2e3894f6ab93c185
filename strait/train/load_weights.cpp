#include "strait/train/load_weights.h"

#include <fmt/format.h>

#include <vector>

#include "strait/base/errors.h"
#include "strait/base/finite.h"
#include "strait/base/process_memory.h"
#include "strait/program/memory.h"

namespace strait::train {
namespace {

/// Weights of one unit: where they go, and where they are read to before.
struct Target {
  checkpoint::LoadRequest request;
  std::vector<std::byte> image;  // in host memory, of what goes to a device
  void* memory = nullptr;
};

std::vector<Target> targets_of(const program::ValueArray& array, const ModelShape& shape,
                               runtime::State& state, bool on_device) {
  std::vector<Target> targets;
  if (array.address.state != checkpoint::kMaster) return targets;
  runtime::ResidentArray& weights = state.array(array.name);
  const size_t bytes = static_cast<size_t>(weights.bytes);
  for (int64_t i = 0; i < array.count; ++i) {
    Target& target = targets.emplace_back();
    target.memory = weights.buffers[i];
    if (on_device) target.image.resize(bytes);
    std::byte* host = on_device ? target.image.data() : static_cast<std::byte*>(target.memory);
    const std::string& unit = shape.units[static_cast<size_t>(array.address.unit + i)].name;
    target.request = {{unit, checkpoint::kMaster, 0, array.partition.elements, array.dtype},
                      std::span(host, bytes)};
  }
  return targets;
}

void require_finite(const checkpoint::LoadRequest& request, const std::string& path) {
  const auto at = first_non_finite(request.range.dtype, request.destination);
  if (!at) return;
  ErrorPlace place;
  place.file = path;
  throw UserError(fmt::format("the weights of {} in {} are not finite, first at element {}; take "
                              "an earlier checkpoint",
                              request.range.unit, path, *at),
                  place);
}

}  // namespace

void load_weights(const program::Program& program, const ModelShape& shape, runtime::State& state,
                  const checkpoint::CheckpointReader& reader, tensor::Device* device) {
  std::vector<Target> targets;
  for (const program::ValueArray& array : program.arrays)
    for (Target& target : targets_of(array, shape, state, device != nullptr))
      targets.push_back(std::move(target));
  std::vector<checkpoint::LoadRequest> requests;
  for (const Target& target : targets) requests.push_back(target.request);
  reader.load(requests);
  for (const Target& target : targets) {
    require_finite(target.request, reader.path());
    if (device)
      tensor::copy_bytes(device, target.image.data(), target.memory,
                         static_cast<int64_t>(target.image.size()));
  }
}

void require_room(const program::Program& program, const std::string& what, const std::string& hint,
                  int64_t has_bytes) {
  require_memory_bytes(what, program::peak_memory(program, 0).total(), has_bytes, hint);
}

}  // namespace strait::train
