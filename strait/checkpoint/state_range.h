// Logical addresses: which elements of the training state a shard of a checkpoint holds, whatever
// the layout of the run that saved it.
#pragma once

#include <cstdint>
#include <string>

#include "strait/base/dtype.h"
#include "strait/base/json.h"
#include "strait/shape/element_runs.h"

namespace strait::checkpoint {

/// States of the optimizer and of the weights, as train writes them. Others may be added by a
/// strategy.
inline constexpr const char* kMaster = "master";
inline constexpr const char* kFirstMoment = "first_moment";
inline constexpr const char* kSecondMoment = "second_moment";
inline constexpr const char* kMomentum = "momentum";

/// Of states that every replica holds once.
inline constexpr int64_t kNoSender = -1;

/// The logical address of elements of the training state: elements [begin, end) of one state of one
/// unit, counted from the start of the logical unit, without padding; end is at most its elements.
/// Where they are not one range, `runs` says which of them and in which order (layout.h); begin and
/// end are the first and the end of the last then. Without a unit: a value of the whole run, named
/// by `state`.
struct StateRange {
  std::string unit;
  std::string state;
  int64_t begin = 0, end = 0;
  Dtype dtype = Dtype::kFloat32;
  ElementRuns runs = {};
  int64_t sender = kNoSender;  // of residuals: the position of the rank that keeps this one
  int64_t replica = 0;         // of the model, where replicas have weights of their own
  int64_t elements() const { return runs.empty() ? end - begin : num_elements(runs); }
};

/// The runs of a range, whether it is one or not.
ElementRuns runs_of(const StateRange& range);
/// The range with these runs; with begin and end alone where they are one range.
StateRange with_runs(StateRange range, ElementRuns runs);

/// A range that lies in `file` as the tensor shard_tensor_name(range).
struct ShardRecord {
  StateRange range;
  std::string file;
};

/// "blocks.0/master/0-100", "blocks.0/residual/1/0-100;sender=3", "counters/0-4".
std::string shard_tensor_name(const StateRange& range);

Json shard_json(const ShardRecord& shard);
/// UserError for a field that is missing or wrong, and for runs that leave [begin, end).
ShardRecord parse_shard(const Json& json);

/// A count of a manifest: an integer of at least `least`, else UserError.
int64_t count_at(const Json& json, const char* key, int64_t least = 0);
/// A file name that cannot leave the checkpoint's folder, else UserError.
std::string plain_name(const Json& json);

}  // namespace strait::checkpoint
