// Orders of a pipeline as data: of every stage the tasks one after another. One form for all, which
// pipeline.cpp turns into visits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/draft/draft.h"

namespace strait::strategy {

/// What a stage does with one run of its blocks for one micro-batch. Where an order has no task
/// kWeights, kBackwards makes the gradients of the weights, too.
struct Task {
  draft::Work work = draft::Work::kForwards;
  int64_t micro_batch = 0;
  int64_t chunk = 0;
  bool operator==(const Task&) const = default;
};
using Tasks = std::vector<Task>;

/// The stage of whose tasks one asks, and of how many micro-batches.
struct OrderPlace {
  int64_t stages = 1, stage = 0, chunks = 1, micro_batches = 1;
};

/// The tasks of a stage with S stages and m micro-batches, F forward, B backward, W weights. A task
/// of stage s needs that of its neighbour: a forward the one before, a backward the one behind;
/// stage 0 of chunk c + 1 stands behind stage S - 1 of chunk c. Every work takes the micro-batches
/// of a chunk in order.
///
/// * "gpipe" (Huang et al. 2019): all forwards, then all backwards.
/// * "1f1b" (Narayanan et al. 2021): min(S - 1 - s, m) forwards, then one forward and one backward
///   in turn: at most min(S - s, m) micro-batches in flight; idle (S - 1)(F + B + W).
/// * "interleaved" (the same, section 2.2): 1F1B over S * chunks stages; m is a multiple of S. The
///   share of idle time is divided by the chunks.
/// * "zero-bubble-h1" (Qi et al. 2024, arXiv 2401.10241): 1F1B where stage s does the weights of a
///   micro-batch behind the backward of the s-th after it. Idle (S - 1)(F + B - W), at most S
///   micro-batches in flight or waiting for their weights.
/// * "zero-bubble-h2": min(2 (S - 1 - s), m - 1) forwards before, and the weights wait 2 s
///   backwards. Idle (S - 1)(F + B - 2 W) for m >= 2 S; 2 S - 1 in flight or waiting.
///
/// InternalError for another name. Cost: O(tasks).
Tasks stage_tasks(const std::string& order, const OrderPlace& place);

/// A stage takes the tasks of one work in this order. With several chunks, so many micro-batches as
/// there are stages go through one chunk after another.
Task nth_task(draft::Work work, int64_t nth, const OrderPlace& place);
int64_t number_of(const Task& task, const OrderPlace& place);

/// How many of its messages in one direction a stage may be ahead of a neighbour that has not taken
/// them yet without anybody waiting for it: by so much warm-ups of neighbours differ.
int64_t messages_ahead(const std::string& order);

/// Those of one that computes losses alone.
Tasks forward_tasks(const OrderPlace& place);

/// Names of orders, in the order of the run file's reference.
const std::vector<std::string>& order_names();
/// Whether an order does weights apart.
bool has_split_backward(const std::string& order);

/// Tasks as micro-steps: neighbours of works in the order F, B, W, at most one of each.
class TaskSteps {
 public:
  /// `turn`: micro-steps repeat with this period, or one by one.
  TaskSteps(Tasks tasks, int64_t micro_batches, int64_t turn);

  int64_t count() const { return static_cast<int64_t>(begins_.size()) - 1; }
  const Task* begin(int64_t step) const { return tasks_.data() + begins_[at(step)]; }
  const Task* end(int64_t step) const { return tasks_.data() + begins_[at(step) + 1]; }
  /// Those that loops may do. In them no gradient is begun or made for the last time.
  const std::vector<draft::EqualSteps>& equal() const { return equal_; }
  /// Whether the next micro-step does the same with other micro-batches.
  bool repeats(int64_t step) const;
  /// How many micro-batches lie between the first and the last that are begun and not done, at
  /// most: places that values of micro-batches need.
  int64_t places() const { return places_; }
  bool splits() const { return splits_; }

 private:
  static size_t at(int64_t step) { return static_cast<size_t>(step); }
  bool same(int64_t a, int64_t b, int64_t advance, bool marks) const;
  int64_t advance_of(int64_t step, int64_t period) const;
  int64_t end_of_run(int64_t first, int64_t period) const;
  void find_equal(int64_t turn);
  void count_places();

  Tasks tasks_;
  int64_t micro_batches_;
  std::vector<size_t> begins_;  // [count + 1]
  std::vector<draft::EqualSteps> equal_;
  int64_t places_ = 1;
  bool splits_ = false;
};

}  // namespace strait::strategy
