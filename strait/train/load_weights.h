// Weights of a checkpoint into the values of a program that does not train.
#pragma once

#include <cstdint>
#include <string>

#include "strait/checkpoint/reader.h"
#include "strait/program/program.h"
#include "strait/runtime/state.h"
#include "strait/shape/shape.h"
#include "strait/tensor/device.h"

namespace strait::train {

/// Fills the resident weights of `program`, whose one rank holds all of them. `device`: where they
/// are, null = plain memory. Errors as CheckpointReader::load; UserError naming the unit when a
/// weight is not finite.
void load_weights(const program::Program& program, const ModelShape& shape, runtime::State& state,
                  const checkpoint::CheckpointReader& reader, tensor::Device* device);

/// NothingFits, naming both, when `program` needs more memory than `has_bytes`. `what` it is for;
/// `hint` says what would fit.
void require_room(const program::Program& program, const std::string& what, const std::string& hint,
                  int64_t has_bytes);

}  // namespace strait::train
