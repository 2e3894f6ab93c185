#include "tests/model/segment_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace strait::model {
namespace {

/// Visits the elements of a rank's part in order: visit(whole parameter, element of the whole unit,
/// element of the local unit). A split dim has consecutive parts; the rank has its share of each.
template <class T, class Visit>
void visit_parts(const UnitShape& whole, const SegmentRank<T>& rank, Visit&& visit) {
  for (const ParameterShape& parameter : whole.parameters) {
    int64_t local = rank.unit().parameter(parameter.name).offset;
    const int64_t columns = parameter.dims.size() > 1 ? parameter.dims[1] : 1;
    for (int64_t element = 0; element < parameter.elements(); ++element) {
      const AxisSplit& split = parameter.split.x;
      int64_t at = split.dim == 0 ? element / columns : element % columns;
      bool held = split.dim < 0;
      for (const int64_t part : split.parts) {
        if (0 <= at && at < part) held = at / (part / rank.x) == rank.index;
        at -= part;
      }
      if (held) visit(parameter, parameter.offset + element, local++);
    }
  }
}

ModelShape part_of(const ModelShape& whole, int64_t x) { return local_shape(whole, x); }

}  // namespace

Ranges one_by_one() {
  Ranges ranges;
  for (int index = 0; index < kNumSegments; ++index) ranges.push_back({index, index + 1});
  return ranges;
}
Ranges whole_block() { return {{0, kNumSegments}}; }
Ranges forward_cuts() { return {{0, 4}, {4, 8}, {8, 9}}; }
Ranges backward_cuts() { return {{0, 1}, {1, 6}, {6, 9}}; }

template <class T>
SegmentRank<T>::SegmentRank(const Runner<T>& whole, int64_t x_ranks, int64_t x_index)
    : extent(block_extent(part_of(whole.model.shape(), x_ranks), whole.batch.batch,
                          whole.batch.tokens, Runner<T>::kDtype)),
      x(x_ranks),
      index(x_index),
      whole_(whole),
      model_(part_of(whole.model.shape(), x_ranks), Runner<T>::kDtype) {
  weights_.resize(static_cast<size_t>(unit().elements));
  gradient.assign(weights_.size(), static_cast<Wide<T>>(NAN));
  visit_parts(whole.model.shape().units[1], *this,
              [&](const ParameterShape&, int64_t from, int64_t to) {
                weights_[static_cast<size_t>(to)] = whole.weights[1][static_cast<size_t>(from)];
              });
}

template <class T>
Guarded& SegmentRank<T>::buffer(BlockValue value) {
  std::unique_ptr<Guarded>& place = buffers_[value];
  if (!place)
    place =
        std::make_unique<Guarded>(value_elements(value, extent) * static_cast<int64_t>(sizeof(T)));
  return *place;
}

template <class T>
SegmentCall SegmentRank<T>::call_with(const ValueSet& given) {
  SegmentCall call;
  call.settings = &whole_.settings;
  call.batch = &whole_.batch;
  call.position = position;
  call.first_head = index * extent.heads;
  for (int number = 0; number < kNumBlockValues; ++number) {
    const auto value = static_cast<BlockValue>(number);
    if (given[value_index(value)] && value_elements(value, extent) > 0)
      call.give(value, buffer(value).data());
  }
  return call;
}

template <class T>
void SegmentRank<T>::run(Phase phase, SegmentRange range, bool keeps) {
  const RangeUses uses = range_uses(range, phase, keeps);
  SegmentCall call = call_with(uses.reads | uses.writes);
  Guarded workspace(workspace_offsets(extent, range, phase, call.given()).elements *
                    static_cast<int64_t>(sizeof(T)));
  call.workspace = workspace.data();
  bool weights = false;
  for (int segment = range.begin; segment < range.end; ++segment)
    weights = weights || reads_weights(static_cast<Segment>(segment), phase);
  if (weights) call.weights = weights_.data();
  if (phase == Phase::kBackwardWeight) call.gradient = gradient.data();
  call.accumulate = accumulate;
  std::map<BlockValue, std::vector<T>> before;
  for (int number = 0; number < kNumBlockValues; ++number)
    if (uses.reads[static_cast<size_t>(number)] && !uses.writes[static_cast<size_t>(number)])
      before[static_cast<BlockValue>(number)] = get(static_cast<BlockValue>(number));
  const SegmentedBlock& segments = *model_.block(1).segments();
  if (phase == Phase::kForward) segments.forward(call, range);
  if (phase == Phase::kBackwardInput) segments.backward_input(call, range);
  if (phase == Phase::kBackwardWeight) segments.backward_weight(call, range);
  EXPECT_TRUE(workspace.intact());
  for (const auto& [value, place] : buffers_) EXPECT_TRUE(place->intact()) << value_name(value);
  for (const auto& [value, values] : before)
    EXPECT_EQ(std::memcmp(values.data(), buffer(value).data(), values.size() * sizeof(T)), 0)
        << value_name(value) << " is only read";
}

template <class T>
std::vector<T> SegmentRank<T>::get(BlockValue value) {
  const T* from = buffer(value).template as<T>();
  return {from, from + value_elements(value, extent)};
}

template <class T>
void SegmentRank<T>::set(BlockValue value, const std::vector<T>& values) {
  ASSERT_EQ(static_cast<int64_t>(values.size()), value_elements(value, extent));
  std::ranges::copy(values, buffer(value).template as<T>());
}

template <class T>
std::vector<Wide<T>> SegmentRank<T>::part(BlockValue value) {
  const int64_t wide = value_dtype(value, Runner<T>::kDtype) == Runner<T>::kDtype ? 1 : extent.wide;
  const int64_t count = value_elements(value, extent) / wide;
  if (value_dtype(value, Runner<T>::kDtype) == Runner<T>::kDtype) {
    const T* from = buffer(value).template as<T>();
    return {from, from + count};
  }
  const auto* from = buffer(value).template as<Wide<T>>();
  return {from, from + count};
}

template <class T>
void SegmentRank<T>::set_part(BlockValue value, const std::vector<Wide<T>>& values) {
  if (value_dtype(value, Runner<T>::kDtype) == Runner<T>::kDtype) {
    for (size_t i = 0; i < values.size(); ++i)
      buffer(value).template as<T>()[i] = static_cast<T>(values[i]);
  } else {
    std::ranges::copy(values, buffer(value).template as<Wide<T>>());
  }
}

template <class T>
void SegmentRank<T>::forget(const ValueSet& values) {
  for (auto& [value, place] : buffers_)
    if (values[value_index(value)])
      std::memset(place->data(), 0xff,
                  static_cast<size_t>(value_elements(value, extent)) * sizeof(T));
}

template <class T>
SegmentRanks<T>::SegmentRanks(const Runner<T>& whole, int64_t x)
    : unit_(whole.model.shape().units[1]) {
  for (int64_t index = 0; index < x; ++index)
    ranks.push_back(std::make_unique<SegmentRank<T>>(whole, x, index));
}

template <class T>
void SegmentRanks<T>::sum_over_x(BlockValue value) {
  if (ranks.size() == 1) return;
  std::vector<Wide<T>> sum = ranks[0]->part(value);
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const std::vector<Wide<T>> other = ranks[rank]->part(value);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  }
  for (const auto& rank : ranks) rank->set_part(value, sum);
}

template <class T>
void SegmentRanks<T>::run(Phase phase, SegmentRange range, bool keeps) {
  for (const auto& rank : ranks) rank->run(phase, range, keeps);
  const ValueSet writes = range_uses(range, phase, keeps).writes;
  for (int number = 0; number < kNumBlockValues; ++number) {
    const auto value = static_cast<BlockValue>(number);
    if (writes[value_index(value)] && partial_over_x(value)) sum_over_x(value);
  }
}

template <class T>
std::vector<double> SegmentRanks<T>::forward(const std::vector<double>& input, const Ranges& ranges,
                                             bool keeps) {
  for (const auto& rank : ranks) rank->set(BlockValue::kInput, convert<T>(input));
  for (const SegmentRange range : ranges) run(Phase::kForward, range, keeps);
  return agreed(BlockValue::kOutput);
}

template <class T>
typename Runner<T>::Backward SegmentRanks<T>::backward(const std::vector<double>& output_gradient,
                                                       const Ranges& ranges, bool accumulate) {
  for (const auto& rank : ranks) {
    rank->set(BlockValue::kOutputGradient, convert<T>(output_gradient));
    rank->accumulate = accumulate;
  }
  for (size_t i = ranges.size(); i > 0; --i) {
    run(Phase::kBackwardInput, ranges[i - 1], true);
    // Nothing but the bundle may be read from here on.
    if (ranges[i - 1].begin == 0)
      for (const auto& rank : ranks) rank->forget(kept_values());
  }
  for (const SegmentRange range : ranges) run(Phase::kBackwardWeight, range, true);
  return {agreed(BlockValue::kInputGradient), whole_gradient()};
}

/// A value that all ranks must have alike, bit for bit.
template <class T>
std::vector<double> SegmentRanks<T>::agreed(BlockValue value) {
  const std::vector<T> first = ranks[0]->get(value);
  for (const auto& rank : ranks)
    EXPECT_EQ(std::memcmp(rank->get(value).data(), first.data(), first.size() * sizeof(T)), 0)
        << value_name(value);
  return widen(first.data(), static_cast<int64_t>(first.size()));
}

/// Cut parameters from the ranks that hold them; shared ones must be alike on all.
template <class T>
std::vector<double> SegmentRanks<T>::whole_gradient() {
  std::vector<double> whole(static_cast<size_t>(unit_.elements), NAN);
  for (const auto& rank : ranks) {
    visit_parts(unit_, *rank, [&](const ParameterShape& parameter, int64_t to, int64_t from) {
      const auto value = static_cast<double>(rank->gradient[static_cast<size_t>(from)]);
      double& place = whole[static_cast<size_t>(to)];
      const bool seen = parameter.split.x.dim < 0 && rank->index > 0;
      EXPECT_TRUE(!seen || place == value) << parameter.name;
      place = value;
    });
  }
  return whole;
}

template class SegmentRank<float>;
template class SegmentRank<double>;
template class SegmentRank<Bfloat16>;
template class SegmentRanks<float>;
template class SegmentRanks<double>;
template class SegmentRanks<Bfloat16>;

}  // namespace strait::model
