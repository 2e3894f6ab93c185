// The training state of one rank by unit: where weights and moments lie, what this rank loads and saves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/reader.h"
#include "strait/layout/layout.h"
#include "strait/program/program.h"
#include "strait/runtime/state.h"
#include "strait/shape/shape.h"
#include "strait/tensor/device.h"

namespace strait::train {

/// One state of one unit on this rank.
struct StatePart {
  int64_t unit = 0;
  std::string state;  // "master", "first_moment", ...
  Dtype dtype = Dtype::kFloat32;
  Range held;   // elements of the unit that the buffer holds
  Range saved;  // elements that this rank writes to a checkpoint; all ranks together tile the unit
  void* data = nullptr;  // element held.begin
};

/// Everything a step program updates, found in the program itself by the values' addresses: one part per
/// unit and updated value.
std::vector<StatePart> state_parts(const program::Program& train, runtime::State& state);

/// Initial weights; moments stay zero. `device`: where the parts are, null = plain memory.
void initialize_parts(const std::vector<StatePart>& parts, const ModelShape& shape, uint64_t seed,
                      tensor::Device* device = nullptr);

/// Fills all parts from a checkpoint of any layout. UserError naming the file, unit or state.
void load_parts(const std::vector<StatePart>& parts, const ModelShape& shape,
                const checkpoint::CheckpointReader& reader, tensor::Device* device = nullptr);

/// Copies in host memory of what lives on a device.
using HostImages = std::vector<std::vector<std::byte>>;

/// What this rank writes. Shards of a device are copied into `images`, which they refer to; waits for them.
std::vector<checkpoint::ShardView> saved_shards(const std::vector<StatePart>& parts,
                                                const ModelShape& shape, tensor::Device* device,
                                                HostImages& images);

}  // namespace strait::train
