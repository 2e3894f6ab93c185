#include "strait/train/unit_state.h"

#include <cstddef>
#include <span>

#include "strait/base/errors.h"
#include "strait/model/block.h"

namespace strait::train {
namespace {

Range held_range(const program::Program& program, const program::ValueArray& array, int64_t rank) {
  const int64_t begin = program::value_begin(program, array, rank);
  return {begin, begin + program::value_elements(program, array, rank)};
}

}  // namespace

std::vector<std::string> moment_states(const OptimizerOptions& options) {
  if (options.kind == "adamw") return {checkpoint::kFirstMoment, checkpoint::kSecondMoment};
  return {checkpoint::kMomentum};
}

std::vector<StatePart> state_parts(const program::Program& train, const ModelShape& shape,
                                   runtime::State& state,
                                   const std::vector<std::string>& moment_states) {
  std::vector<StatePart> parts;
  const int64_t rank = state.rank();
  program::for_each_instance(train, [&](const program::Op& op, const std::vector<int64_t>& loops) {
    if (op.kind != program::OpKind::kUpdate) return;
    size_t moment = 0;
    for (const program::Operand& operand : op.writes) {
      const program::ValueArray& array = train.arrays[operand.array];
      StatePart part;
      part.unit = shape.blocks[program::evaluate(op.block, loops)].unit;
      part.state = operand.role == program::Role::kWeights ? checkpoint::kMaster
                                                           : moment_states.at(moment++);
      part.dtype = array.dtype;
      part.held = held_range(train, array, rank);
      part.saved = counted_range(train, op, rank);
      part.data = state.array(array.name).buffers[program::evaluate(operand.index, loops)];
      parts.push_back(std::move(part));
    }
  });
  return parts;
}

void initialize_parts(const std::vector<StatePart>& parts, const ModelShape& shape, uint64_t seed) {
  for (const StatePart& part : parts)
    if (part.state == checkpoint::kMaster)
      model::initialize(shape.units[part.unit], seed, part.dtype, part.held.begin, part.held.end,
                        part.data);
}

void load_parts(const std::vector<StatePart>& parts, const ModelShape& shape,
                const checkpoint::CheckpointReader& reader) {
  std::vector<checkpoint::LoadRequest> requests;
  for (const StatePart& part : parts) {
    const checkpoint::StateRange range{shape.units[part.unit].name, part.state, part.held.begin,
                                       part.held.end, part.dtype};
    const size_t bytes = static_cast<size_t>(part.held.size() * dtype_bytes(part.dtype));
    requests.push_back({range, std::span(static_cast<std::byte*>(part.data), bytes)});
  }
  reader.load(requests);
}

std::vector<checkpoint::ShardView> saved_shards(const std::vector<StatePart>& parts,
                                                const ModelShape& shape) {
  std::vector<checkpoint::ShardView> shards;
  for (const StatePart& part : parts) {
    const checkpoint::StateRange range{shape.units[part.unit].name, part.state, part.saved.begin,
                                       part.saved.end, part.dtype};
    const int64_t offset = (part.saved.begin - part.held.begin) * dtype_bytes(part.dtype);
    shards.push_back({range, static_cast<const char*>(part.data) + offset});
  }
  return shards;
}

}  // namespace strait::train
