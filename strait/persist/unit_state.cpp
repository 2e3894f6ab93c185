#include "strait/persist/unit_state.h"

#include <algorithm>
#include <optional>
#include <span>

#include "strait/base/errors.h"
#include "strait/checkpoint/module_weights.h"
#include "strait/comm/bookkeeping.h"
#include "strait/draft/step_options.h"
#include "strait/model/block.h"
#include "strait/program/classes.h"
#include "strait/strategy/adapt/adapt.h"
#include "strait/strategy/sync/sync.h"

namespace strait::persist {
namespace {

Range held_range(const program::Program& program, const program::ValueArray& array, int64_t rank) {
  const int64_t begin = program::value_begin(program, array, rank);
  return {begin, begin + program::value_elements(program, array, rank)};
}

/// Where a rank holds elements of a unit: which, and where they begin in the value.
struct Held {
  Range range;
  int64_t offset = 0;
};
std::vector<Held> held_of(const program::Program& program, const program::ValueArray& array,
                          int64_t rank) {
  if (array.address.stretches.empty()) return {{held_range(program, array, rank), 0}};
  const program::Group& group = program.groups[static_cast<size_t>(array.group)];
  const int64_t parts = group.parts(), part = group.part(rank);
  std::vector<Held> held;
  int64_t first = 0, offset = 0;
  for (const int64_t length : array.address.stretches) {
    const program::Partition cut{length, (length + parts - 1) / parts};
    if (cut.count(part) > 0)
      held.push_back({{first + cut.begin(part), first + cut.end(part)}, offset});
    first += length;
    offset += cut.grain;
  }
  return held;
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

/// Calls visit(op, array, index) for every value of a unit that a program's kernels write and that
/// all its holders have in common: what optimizers do.
template <class Visit>
void for_each_updated(const program::Program& program, const Visit& visit) {
  program::for_each_instance(program, [&](const program::Op& op, const program::Loops& loops) {
    if (op.kernel == nullptr) return;
    for (const program::Operand& operand : op.writes) {
      const program::ValueArray& array = program.arrays[operand.array];
      if (array.address.unit >= 0 && !array.address.by_sender)
        visit(op, array, program::evaluate(operand.index, loops));
    }
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

/// What stands in for a state that a checkpoint lacks because it comes from a run without local
/// steps or without choices of settings: the weights of all for those of a replica; else nothing,
/// which leaves zeros.
checkpoint::StateRange fallback_of(checkpoint::StateRange range) {
  const bool weights = range.state == draft::kLocalState;
  const bool sums = range.state == strategy::kOuterMomentumState ||
                    range.state == strategy::kOuterGradientState ||
                    range.state == strategy::kGatheredState;
  range.replica = 0;
  if (weights) range.state = checkpoint::kMaster;
  if (sums) range.state.clear();
  return range;
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

UnitState::UnitState(const program::ProgramSet& programs, const ModelShape& shape,
                     const Layout& layout, runtime::State& state)
    : programs_(programs), shape_(shape), layout_(layout), state_(state) {
  for (const program::StepKind& kind : programs.kinds)
    add_updated(program::class_of(kind.classes, state.rank()));
  add_residuals(step_of(state.rank()));
}

const program::Program& UnitState::step_of(int64_t rank) const {
  return program::class_of(programs_.kinds.front().classes, rank);
}

bool UnitState::has(int64_t unit, const std::string& state) const {
  return std::ranges::any_of(
      parts_, [&](const Part& part) { return part.unit == unit && part.state == state; });
}

/// One part for each range of elements.
void UnitState::add_parts(const program::Program& step, const program::ValueArray& array,
                          int64_t index) {
  const runtime::ResidentArray& resident = state_.array(array.name);
  Part part;
  part.unit = array.address.unit + index;
  part.state = array.address.state;
  part.dtype = array.dtype;
  part.by_sender = array.address.by_sender;
  part.by_replica = array.address.by_replica;
  part.device = state_.device_of(resident);
  auto* const data = static_cast<std::byte*>(resident.buffers[static_cast<size_t>(index)]);
  for (const auto& [range, offset] : held_of(step, array, state_.rank())) {
    part.held = part.saved = range;
    part.data = data == nullptr ? nullptr : data + offset * dtype_bytes(array.dtype);
    parts_.push_back(part);
  }
}

void UnitState::add_updated(const program::Program& program) {
  for_each_updated(
      program, [&](const program::Op& op, const program::ValueArray& array, int64_t index) {
        if (has(array.address.unit + index, array.address.state)) return;
        add_parts(program, array, index);
        Part& part = parts_.back();
        part.saved = layout_.written(part.unit, state_.rank(), hops_of(program.groups[op.group]));
      });
}

void UnitState::add_residuals(const program::Program& step) {
  for (const program::ValueArray& array : step.arrays)
    for (int64_t index = 0; array.address.by_sender && index < array.count; ++index)
      add_parts(step, array, index);
}

checkpoint::StateRange UnitState::address(const Part& part, ElementRuns runs) const {
  checkpoint::StateRange range{shape_.units[static_cast<size_t>(part.unit)].name, part.state};
  range.dtype = part.dtype;
  if (part.by_sender) range.sender = layout_.sender(part.unit, state_.rank());
  if (part.by_replica) range.replica = layout_.replica(state_.rank());
  return checkpoint::with_runs(std::move(range), std::move(runs));
}

void UnitState::initialize(uint64_t seed) const {
  std::optional<checkpoint::ModuleWeights> modules;
  if (shape_.modules && shape_.modules->from_folder()) modules.emplace(*shape_.modules);
  for (const Part& part : parts_) {
    if (part.state != checkpoint::kMaster && part.state != draft::kLocalState) continue;
    const ElementRuns runs = layout_.pieces(part.unit, state_.rank(), part.held);
    fill_from_host(part.device, part.data, part.held.size() * dtype_bytes(part.dtype),
                   [&](std::byte* memory) {
                     const UnitShape& unit = shape_.units[static_cast<size_t>(part.unit)];
                     if (modules) return modules->read(unit, part.dtype, runs, memory);
                     model::initialize(unit, seed, part.dtype, runs, memory);
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
    checkpoint::StateRange range =
        address(part, layout_.pieces(part.unit, state_.rank(), part.held));
    if (!reader.has_state(range.unit, range.state)) range = fallback_of(std::move(range));
    if (range.state.empty()) continue;
    requests.push_back({std::move(range), std::span(memory, bytes)});
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
  for (int64_t rank = 0; rank < step_of(0).ranks; ++rank) {
    if (layout_.replica(rank) != layout_.replica(state_.rank())) continue;
    const program::Program& step = step_of(rank);
    const program::ValueArray* array = array_of(step, part.state, part.unit);
    if (array == nullptr) continue;
    for (const Held& held : held_of(step, *array, rank))
      for (LocalPiece& piece : layout_.sent_pieces(part.unit, rank, held.range))
        shares.push_back({layout_.sender(part.unit, rank), std::move(piece.runs)});
  }
  return shares;
}

void UnitState::load_residual(const checkpoint::CheckpointReader& reader, const Part& part) const {
  const checkpoint::SenderShare mine{layout_.sender(part.unit, state_.rank()),
                                     layout_.pieces(part.unit, state_.rank(), part.held)};
  std::vector<float> values(static_cast<size_t>(part.held.size()));
  checkpoint::load_residual(reader, address(part, {}), mine, shares_of(part), values);
  tensor::copy_bytes(part.device, values.data(), part.data,
                     static_cast<int64_t>(values.size() * sizeof(float)));
}

/// The op of a class whose kernel writes a unit's weights, and its program.
std::pair<const program::Program*, const program::Op*> UnitState::find_update(size_t rank_class,
                                                                              int64_t unit) const {
  for (const program::StepKind& kind : programs_.kinds) {
    const program::Program& program = kind.classes[rank_class];
    const program::Op* found = nullptr;
    for_each_updated(
        program, [&](const program::Op& op, const program::ValueArray& array, int64_t index) {
          if (array.address.state == checkpoint::kMaster && array.address.unit + index == unit)
            found = &op;
        });
    if (found != nullptr) return {&program, found};
  }
  return {};
}

/// What each rank of the first replica saves of a unit's weights.
std::vector<ElementRuns> UnitState::weights_by_rank(int64_t unit) const {
  const std::vector<program::Program>& classes = programs_.kinds.front().classes;
  std::vector<ElementRuns> runs(static_cast<size_t>(classes.front().ranks));
  for (size_t c = 0; c < classes.size(); ++c) {
    const auto [program, op] = find_update(c, unit);
    if (op == nullptr) continue;
    const std::vector<int64_t> hops = hops_of(program->groups[op->group]);
    for (const int64_t rank : program::class_ranks(*program)) {
      if (layout_.replica(rank) != 0) continue;
      for (const LocalPiece& piece :
           layout_.written_pieces(unit, rank, layout_.written(unit, rank, hops)))
        append(runs[static_cast<size_t>(rank)], piece.runs);
    }
  }
  return runs;
}

/// Copies what this rank saves of a unit's weights, one piece behind the other.
void UnitState::pack_weights(int64_t unit, std::byte* to) const {
  if (layout_.replica(state_.rank()) != 0) return;
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
  for (const program::StepKind& kind : programs_.kinds)
    for (const program::Program& program : kind.classes)
      for (const program::ValueArray& array : program.arrays)
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

bool UnitState::saves(const Part& part) const {
  return part.by_replica || layout_.replica(state_.rank()) == 0;
}

std::vector<checkpoint::ShardView> UnitState::shards(HostImages& images) const {
  std::vector<checkpoint::ShardView> shards;
  for (const Part& part : parts_) {
    if (!saves(part)) continue;
    for (LocalPiece& piece : part.by_sender
                                 ? layout_.sent_pieces(part.unit, state_.rank(), part.saved)
                                 : layout_.written_pieces(part.unit, state_.rank(), part.saved)) {
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
  }
  return shards;
}

}  // namespace strait::persist
