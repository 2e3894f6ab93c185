// The training state of one rank: where the values with a logical address lie, what this rank loads
// and saves of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/reader.h"
#include "strait/layout/layout.h"
#include "strait/program/program_set.h"
#include "strait/runtime/interpreter.h"
#include "strait/runtime/state.h"
#include "strait/shape/shape.h"
#include "strait/tensor/device.h"

namespace strait::persist {

/// Copies in host memory of what lives on a device.
using HostImages = std::vector<std::vector<std::byte>>;

/// Weights, moments, residuals and what else of one rank outlives a step, by unit. Found in the
/// programs by the addresses of the values: what kernels write, and what senders keep.
class UnitState {
 public:
  /// `programs`: of a run, bound to `state` already. `shape`: the model as one rank would hold it.
  /// All outlive this.
  UnitState(const program::ProgramSet& programs, const ModelShape& shape, const Layout& layout,
            runtime::State& state);

  /// Initial weights, of modules those of their folder; everything else stays zero.
  void initialize(uint64_t seed) const;

  /// Fills all of it from a checkpoint of any layout; residuals, which older ones lack, are zero
  /// then. UserError naming the file, unit or state.
  void load(const checkpoint::CheckpointReader& reader) const;

  /// The weights of a unit as one rank would hold them, on rank 0; nothing on the others. All ranks
  /// call it, in the same order, when no transfer is in flight. Cost: each element is sent once, by
  /// the rank that would save it.
  std::vector<std::byte> collect_weights(int64_t unit, const runtime::Site& site) const;
  /// Type of the weights as they are kept.
  Dtype weights_dtype() const;

  /// What this rank writes. What lives on a device is copied into `images`, which the shards refer
  /// to; waits for the copies.
  std::vector<checkpoint::ShardView> shards(HostImages& images) const;

 private:
  /// One state of one unit. Ranges are of the local unit.
  struct Part {
    int64_t unit = 0;
    std::string state;
    Dtype dtype = Dtype::kFloat32;
    bool by_sender = false, by_replica = false;
    Range held;            // in the buffer
    Range saved;           // that this position writes
    void* data = nullptr;  // element held.begin
    tensor::Device* device = nullptr;
  };
  void add_updated(const program::Program& program);
  bool has(int64_t unit, const std::string& state) const;
  /// Whether this rank's replica saves it.
  bool saves(const Part& part) const;
  void pack_weights(int64_t unit, std::byte* to) const;
  std::vector<ElementRuns> weights_by_rank(int64_t unit) const;
  std::pair<const program::Program*, const program::Op*> find_update(size_t rank_class,
                                                                     int64_t unit) const;
  /// What a rank runs in a step, which is the first kind of the set.
  const program::Program& step_of(int64_t rank) const;
  void add_residuals(const program::Program& step);
  void add_parts(const program::Program& step, const program::ValueArray& array, int64_t index);
  checkpoint::StateRange address(const Part& part, ElementRuns runs) const;
  std::vector<checkpoint::SenderShare> shares_of(const Part& part) const;
  void load_residual(const checkpoint::CheckpointReader& reader, const Part& part) const;

  const program::ProgramSet& programs_;
  const ModelShape& shape_;
  const Layout& layout_;
  runtime::State& state_;
  std::vector<Part> parts_;
};

}  // namespace strait::persist
