#include "strait/train/unit_state.h"

#include <span>

#include "strait/model/block.h"
#include "strait/program/program_set.h"
#include "strait/strategy/finish/kernels.h"

namespace strait::train {
namespace {

Range held_range(const program::Program& program, const program::ValueArray& array, int64_t rank) {
  const int64_t begin = program::value_begin(program, array, rank);
  return {begin, begin + program::value_elements(program, array, rank)};
}

/// The array that holds a state of a unit, or nullptr.
const program::ValueArray* array_of(const program::Program& program, const std::string& state,
                                    int64_t unit) {
  for (const program::ValueArray& array : program.arrays)
    if (array.address.state == state && array.address.unit <= unit &&
        unit < array.address.unit + array.count)
      return &array;
  return nullptr;
}

/// Calls fill(memory) for `bytes` bytes of host memory that end up at `data` of the device.
template <class Fill>
void fill_from_host(tensor::Device* device, void* data, int64_t bytes, const Fill& fill) {
  if (!device) return fill(static_cast<std::byte*>(data));
  std::vector<std::byte> image(static_cast<size_t>(bytes));
  fill(image.data());
  tensor::copy_bytes(device, image.data(), data, bytes);
}

}  // namespace

UnitState::UnitState(const std::vector<program::Program>& classes, const ModelShape& shape,
                     const Layout& layout, runtime::State& state)
    : classes_(classes), shape_(shape), layout_(layout), state_(state) {
  const program::Program& step = program::class_of(classes, state.rank());
  add_updated(step);
  add_residuals(step);
}

UnitState::Part UnitState::part_of(const program::Program& step, const program::ValueArray& array,
                                   int64_t index) {
  const runtime::ResidentArray& resident = state_.array(array.name);
  Part part;
  part.unit = array.address.unit + index;
  part.state = array.address.state;
  part.dtype = array.dtype;
  part.by_sender = array.address.by_sender;
  part.held = part.saved = held_range(step, array, state_.rank());
  part.data = resident.buffers[static_cast<size_t>(index)];
  part.device = state_.device_of(resident);
  return part;
}

void UnitState::add_updated(const program::Program& step) {
  program::for_each_instance(step, [&](const program::Op& op, const program::Loops& loops) {
    if (op.kernel != &strategy::kUpdate) return;
    for (const program::Operand& operand : op.writes) {
      Part part =
          part_of(step, step.arrays[operand.array], program::evaluate(operand.index, loops));
      part.saved = counted_range(step, op, state_.rank());
      parts_.push_back(std::move(part));
    }
  });
}

void UnitState::add_residuals(const program::Program& step) {
  for (const program::ValueArray& array : step.arrays)
    for (int64_t index = 0; array.address.by_sender && index < array.count; ++index)
      parts_.push_back(part_of(step, array, index));
}

checkpoint::StateRange UnitState::address(const Part& part, ElementRuns runs) const {
  checkpoint::StateRange range{shape_.units[static_cast<size_t>(part.unit)].name, part.state};
  range.dtype = part.dtype;
  if (part.by_sender) range.sender = layout_.position(state_.rank());
  return checkpoint::with_runs(std::move(range), std::move(runs));
}

void UnitState::initialize(uint64_t seed) const {
  for (const Part& part : parts_) {
    if (part.state != checkpoint::kMaster) continue;
    const ElementRuns runs = layout_.pieces(part.unit, state_.rank(), part.held);
    fill_from_host(part.device, part.data, part.held.size() * dtype_bytes(part.dtype),
                   [&](std::byte* memory) {
                     model::initialize(shape_.units[static_cast<size_t>(part.unit)], seed,
                                       part.dtype, runs, memory);
                   });
  }
}

void UnitState::load(const checkpoint::CheckpointReader& reader) const {
  std::vector<checkpoint::LoadRequest> requests;
  std::vector<std::pair<const Part*, std::vector<std::byte>>> images;
  for (const Part& part : parts_) {
    if (part.by_sender) continue;
    const auto bytes = static_cast<size_t>(part.held.size() * dtype_bytes(part.dtype));
    std::byte* memory = static_cast<std::byte*>(part.data);
    if (part.device) memory = images.emplace_back(&part, bytes).second.data();
    requests.push_back({address(part, layout_.pieces(part.unit, state_.rank(), part.held)),
                        std::span(memory, bytes)});
  }
  reader.load(requests);
  for (const auto& [part, image] : images)
    tensor::copy_bytes(part->device, image.data(), part->data, static_cast<int64_t>(image.size()));
  for (const Part& part : parts_)
    if (part.by_sender) load_residual(reader, part);
}

/// What all ranks hold of a residual.
std::vector<checkpoint::SenderShare> UnitState::shares_of(const Part& part) const {
  std::vector<checkpoint::SenderShare> shares;
  for (int64_t rank = 0; rank < classes_.front().ranks; ++rank) {
    const program::Program& step = program::class_of(classes_, rank);
    const program::ValueArray* array = array_of(step, part.state, part.unit);
    if (array == nullptr) continue;
    for (LocalPiece& piece :
         layout_.written_pieces(part.unit, rank, held_range(step, *array, rank)))
      shares.push_back({layout_.position(rank), std::move(piece.runs)});
  }
  return shares;
}

void UnitState::load_residual(const checkpoint::CheckpointReader& reader, const Part& part) const {
  const checkpoint::SenderShare mine{layout_.position(state_.rank()),
                                     layout_.pieces(part.unit, state_.rank(), part.held)};
  std::vector<float> values(static_cast<size_t>(part.held.size()));
  checkpoint::load_residual(reader, address(part, {}), mine, shares_of(part), values);
  tensor::copy_bytes(part.device, values.data(), part.data,
                     static_cast<int64_t>(values.size() * sizeof(float)));
}

std::vector<checkpoint::ShardView> UnitState::shards(HostImages& images) const {
  std::vector<checkpoint::ShardView> shards;
  for (const Part& part : parts_)
    for (LocalPiece& piece : layout_.written_pieces(part.unit, state_.rank(), part.saved)) {
      const int64_t size = dtype_bytes(part.dtype);
      const auto* data =
          static_cast<const std::byte*>(part.data) + (piece.local.begin - part.held.begin) * size;
      if (part.device) {
        const int64_t bytes = piece.local.size() * size;
        std::vector<std::byte>& image = images.emplace_back(static_cast<size_t>(bytes));
        tensor::copy_bytes(part.device, data, image.data(), bytes);
        data = image.data();
      }
      shards.push_back({address(part, std::move(piece.runs)), data});
    }
  return shards;
}

}  // namespace strait::train
