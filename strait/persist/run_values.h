// Values of the whole run that outlive a step, such as its counters: equal on all ranks, saved
// once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/reader.h"
#include "strait/program/program.h"
#include "strait/runtime/state.h"

namespace strait::persist {

/// Those of one rank. Found in a program by their addresses: a state, but no unit.
class RunValues {
 public:
  /// `step` is bound to `state` already; both outlive this. InternalError for a value that is in
  /// parts or on a device. Values of one array are called state/0, state/1, ...
  RunValues(const program::Program& step, runtime::State& state);

  /// Fills what the checkpoint has of them, from the first element on. One that it lacks, or whose
  /// later elements it lacks, keeps what it holds: older versions know fewer.
  void load(const checkpoint::CheckpointReader& reader) const;

  /// For the manifest.
  std::vector<checkpoint::ValueRecord> records() const;
  /// What one rank writes for all.
  std::vector<checkpoint::ShardView> shards() const;

 private:
  struct Value {
    std::string state;
    Dtype dtype = Dtype::kFloat64;
    int64_t elements = 0;
    void* data = nullptr;
    checkpoint::StateRange range(int64_t count) const { return {"", state, 0, count, dtype}; }
  };
  std::vector<Value> values_;
};

}  // namespace strait::persist
