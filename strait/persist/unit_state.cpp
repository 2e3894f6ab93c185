#include "strait/persist/unit_state.h"

#include <span>

#include "strait/base/errors.h"
#include "strait/comm/bookkeeping.h"
#include "strait/model/block.h"
#include "strait/program/program_set.h"
#include "strait/strategy/finish/kernels.h"

namespace strait::persist {
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

/// Calls visit(op, array, index) for every value that the step's updates write.
template <class Visit>
void for_each_updated(const program::Program& step, const Visit& visit) {
  program::for_each_instance(step, [&](const program::Op& op, const program::Loops& loops) {
    if (op.kernel != &strategy::kUpdate) return;
    for (const program::Operand& operand : op.writes)
      visit(op, step.arrays[operand.array], program::evaluate(operand.index, loops));
  });
}

/// Memory of a pool that others send into and read from.
class SharedBuffer {
 public:
  SharedBuffer(memory::Pool& pool, int64_t bytes)
      : pool_(pool), data_(pool.allocate(bytes, memory::Reach::kShared)) {}
  ~SharedBuffer() { pool_.release(data_); }
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  memory::Pool& pool_;
  void* data_;
};

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
  for_each_updated(
      step, [&](const program::Op& op, const program::ValueArray& array, int64_t index) {
        Part part = part_of(step, array, index);
        part.saved = layout_.written(part.unit, state_.rank(), hops_of(step.groups[op.group]));
        parts_.push_back(std::move(part));
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

/// What each rank saves of a unit's weights.
std::vector<ElementRuns> UnitState::weights_by_rank(int64_t unit) const {
  std::vector<ElementRuns> runs(static_cast<size_t>(classes_.front().ranks));
  const auto add = [&](const program::Program& step, const program::Op& op) {
    const std::vector<int64_t> hops = hops_of(step.groups[op.group]);
    for (size_t at = 0; at < runs.size(); ++at) {
      const auto rank = static_cast<int64_t>(at);
      if (&program::class_of(classes_, rank) != &step) continue;
      for (const LocalPiece& piece :
           layout_.written_pieces(unit, rank, layout_.written(unit, rank, hops)))
        append(runs[at], piece.runs);
    }
  };
  for (const program::Program& step : classes_)
    for_each_updated(
        step, [&](const program::Op& op, const program::ValueArray& array, int64_t index) {
          if (array.address.state == checkpoint::kMaster && array.address.unit + index == unit)
            add(step, op);
        });
  return runs;
}

/// Copies what this rank saves of a unit's weights, one piece behind the other.
void UnitState::pack_weights(int64_t unit, std::byte* to) const {
  for (const Part& part : parts_) {
    if (part.unit != unit || part.state != checkpoint::kMaster) continue;
    const int64_t size = dtype_bytes(part.dtype);
    for (const LocalPiece& piece : layout_.written_pieces(unit, state_.rank(), part.saved)) {
      const auto* from = static_cast<const std::byte*>(part.data);
      const int64_t bytes = piece.local.size() * size;
      tensor::copy_bytes(part.device, from + (piece.local.begin - part.held.begin) * size, to,
                         bytes);
      to += bytes;
    }
  }
}

Dtype UnitState::weights_dtype() const {
  // Of any class: a rank may hold no weights at all.
  for (const program::Program& step : classes_)
    for (const program::ValueArray& array : step.arrays)
      if (array.address.state == checkpoint::kMaster) return array.dtype;
  throw InternalError("unit state: the step keeps no weights");
}

std::vector<std::byte> UnitState::collect_weights(int64_t unit, const runtime::Site& site) const {
  const std::vector<ElementRuns> by_rank = weights_by_rank(unit);
  ElementRuns received;  // in the order of ranks
  comm::Call call;
  for (const ElementRuns& runs : by_rank) {
    if (state_.rank() == 0) append(received, runs);
    call.receive_counts.push_back(state_.rank() == 0 ? num_elements(runs) : 0);
  }
  call.operation = comm::Operation::kAllToAll;
  call.dtype = weights_dtype();
  call.counts.assign(by_rank.size(), 0);
  call.counts[0] = num_elements(by_rank[static_cast<size_t>(state_.rank())]);
  call.deadline_seconds = site.deadline_seconds;
  call.label = "collect " + shape_.units[static_cast<size_t>(unit)].name;
  const int64_t size = dtype_bytes(call.dtype), bytes = num_elements(received) * size;
  const SharedBuffer source(site.pool, call.counts[0] * size), destination(site.pool, bytes);
  pack_weights(unit, source.data());
  call.source = source.data();
  call.destination = destination.data();
  comm::bookkeeping_lane(site.world).run(call);
  std::vector<std::byte> packed(static_cast<size_t>(bytes)), whole(packed.size());
  tensor::copy_bytes(site.pool.device(), destination.data(), packed.data(), bytes);
  unpack(received, size, packed, whole);
  return whole;
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

}  // namespace strait::persist
