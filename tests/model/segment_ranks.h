// The ranks of mesh axes x and y in one thread: each runs the segments of its part of a block on
// guarded buffers that hold exactly what shape/segment.h declares, and plain loops sum what is
// partial between them.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "strait/shape/boxes.h"
#include "strait/shape/split.h"
#include "tests/model/runner.h"

namespace strait::model {

/// In which pieces a block is run, in forward order.
using Ranges = std::vector<SegmentRange>;
Ranges one_by_one();
Ranges whole_block();
/// Between the sums of x, forward and backward.
Ranges forward_cuts();
Ranges backward_cuts();
/// Between those of x and y.
Ranges grid_cuts(Phase phase);

/// One rank's part of block 1 of a model.
template <class T>
class SegmentRank {
 public:
  /// `whole` lends settings and batch, and its model's weights are cut.
  SegmentRank(const Runner<T>& whole, AxisPlace x, AxisPlace y);

  /// Runs a range with its declared operands and nothing else; checks that it writes nothing else.
  void run(Phase phase, SegmentRange range, bool keeps = true);
  std::vector<T> get(BlockValue value);
  void set(BlockValue value, const std::vector<T>& values);
  /// Numbers of a partial value; added and set in the type that ranks sum.
  std::vector<double> part(BlockValue value);
  void add_part(BlockValue value, const std::vector<double>& values);
  void set_part(BlockValue value, const std::vector<double>& values);
  /// Fills what `values` names with NaN.
  void forget(const ValueSet& values);

  const UnitShape& unit() const { return model_.shape().units[1]; }

  BlockExtent extent;
  AxisPlace x, y;
  bool accumulate = false;
  int64_t position = 0;
  std::vector<Wide<T>> gradient;  // flat local unit

 private:
  Guarded& buffer(BlockValue value);
  SegmentCall call_with(const ValueSet& given);

  const Runner<T>& whole_;
  Model model_;
  std::vector<T> weights_;
  std::map<BlockValue, std::unique_ptr<Guarded>> buffers_;
};

/// All ranks of x and y together, those of x next to each other.
template <class T>
class SegmentRanks {
 public:
  SegmentRanks(const Runner<T>& whole, int64_t x, int64_t y = 1);
  std::vector<double> forward(const std::vector<double>& input, const Ranges& ranges,
                              bool keeps = true);
  /// Behind forward. The unit gradient is that of the whole block.
  typename Runner<T>::Backward backward(const std::vector<double>& output_gradient,
                                        const Ranges& ranges, bool accumulate = false);

  std::vector<std::unique_ptr<SegmentRank<T>>> ranks;

 private:
  void run(Phase phase, SegmentRange range, bool keeps);
  /// Sums a value over the groups of ranks that are `count` members, `stride` apart.
  void sum_over(BlockValue value, int64_t count, int64_t stride);
  /// Columns of the residual stream, to and from all ranks.
  void scatter(BlockValue value, const std::vector<double>& whole);
  std::vector<double> agreed(BlockValue value);
  std::vector<double> whole_gradient();

  UnitShape unit_;
  int64_t x_, y_;
};

extern template class SegmentRank<float>;
extern template class SegmentRank<double>;
extern template class SegmentRank<Bfloat16>;
extern template class SegmentRanks<float>;
extern template class SegmentRanks<double>;
extern template class SegmentRanks<Bfloat16>;

}  // namespace strait::model
