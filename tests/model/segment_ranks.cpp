#include "tests/model/segment_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace strait::model {
namespace {

/// Whether a rank of an axis holds the place `at` of a dim: it has its share of each part.
bool holds(const AxisSplit& split, int64_t at, AxisPlace place) {
  for (const int64_t part : split.parts) {
    if (0 <= at && at < part) return at / (part / place.size) == place.coordinate;
    at -= part;
  }
  return split.dim < 0;
}

/// Visits the elements of a rank's part in order: visit(whole parameter, element of the whole unit,
/// element of the local unit).
template <class T, class Visit>
void visit_parts(const UnitShape& whole, const SegmentRank<T>& rank, Visit&& visit) {
  for (const ParameterShape& parameter : whole.parameters) {
    int64_t local = rank.unit().parameter(parameter.name).offset;
    const int64_t columns = parameter.dims.size() > 1 ? parameter.dims[1] : 1;
    for (int64_t element = 0; element < parameter.elements(); ++element) {
      const auto held = [&](const AxisSplit& split, AxisPlace place) {
        return place.size == 1 ||
               holds(split, split.dim == 0 ? element / columns : element % columns, place);
      };
      if (held(parameter.split.x, rank.x) && held(parameter.split.y, rank.y))
        visit(parameter, parameter.offset + element, local++);
    }
  }
}

ModelShape part_of(const ModelShape& whole, int64_t x, int64_t y) {
  return local_shape(whole, x, y);
}

}  // namespace

Ranges one_by_one() {
  Ranges ranges;
  for (int index = 0; index < kNumSegments; ++index) ranges.push_back({index, index + 1});
  return ranges;
}
Ranges whole_block() { return {{0, kNumSegments}}; }
Ranges forward_cuts() { return {{0, 6}, {6, 13}, {13, 15}}; }
Ranges backward_cuts() { return {{0, 2}, {2, 10}, {10, 15}}; }
Ranges grid_cuts(Phase phase) {
  Ranges ranges = cut_at_exchanges({}, phase);
  if (phase != Phase::kForward) std::ranges::reverse(ranges);
  return ranges;
}

template <class T>
SegmentRank<T>::SegmentRank(const Runner<T>& whole, AxisPlace x_place, AxisPlace y_place)
    : extent(block_extent(part_of(whole.model.shape(), x_place.size, y_place.size),
                          whole.batch.batch, whole.batch.tokens, Runner<T>::kDtype)),
      x(x_place),
      y(y_place),
      whole_(whole),
      model_(part_of(whole.model.shape(), x_place.size, y_place.size), Runner<T>::kDtype) {
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
  call.first_head = x.coordinate * extent.heads;
  call.first_column = y.coordinate * extent.width;
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

/// Calls use(address as the type of the value's numbers, their count).
template <class T, class Use>
auto with_numbers(BlockValue value, const BlockExtent& extent, void* data, const Use& use) {
  const Dtype dtype = value_dtype(value, Runner<T>::kDtype);
  const int64_t count =
      value_elements(value, extent) * static_cast<int64_t>(sizeof(T)) / dtype_bytes(dtype);
  if (dtype == Runner<T>::kDtype) return use(static_cast<T*>(data), count);
  if (dtype == Dtype::kFloat64) return use(static_cast<double*>(data), count);
  return use(static_cast<Wide<T>*>(data), count);
}

template <class T>
std::vector<double> SegmentRank<T>::part(BlockValue value) {
  return with_numbers<T>(value, extent, buffer(value).data(), [](auto* from, int64_t count) {
    return std::vector<double>(from, from + count);
  });
}

/// Rounds to the type of the value, in which ranks add.
template <class T>
void SegmentRank<T>::add_part(BlockValue value, const std::vector<double>& values) {
  with_numbers<T>(value, extent, buffer(value).data(), [&](auto* to, int64_t count) {
    using Number = std::remove_pointer_t<decltype(to)>;
    for (int64_t i = 0; i < count; ++i)
      to[i] = static_cast<Number>(static_cast<Wide<Number>>(to[i]) +
                                  static_cast<Wide<Number>>(values[static_cast<size_t>(i)]));
  });
}

template <class T>
void SegmentRank<T>::set_part(BlockValue value, const std::vector<double>& values) {
  with_numbers<T>(value, extent, buffer(value).data(), [&](auto* to, int64_t) {
    using Number = std::remove_pointer_t<decltype(to)>;
    for (size_t i = 0; i < values.size(); ++i) to[i] = static_cast<Number>(values[i]);
  });
}

template <class T>
void SegmentRank<T>::forget(const ValueSet& values) {
  for (auto& [value, place] : buffers_)
    if (values[value_index(value)])
      std::memset(place->data(), 0xff,
                  static_cast<size_t>(value_elements(value, extent)) * sizeof(T));
}

template <class T>
SegmentRanks<T>::SegmentRanks(const Runner<T>& whole, int64_t x, int64_t y)
    : unit_(whole.model.shape().units[1]), x_(x), y_(y) {
  for (int64_t index = 0; index < x * y; ++index)
    ranks.push_back(
        std::make_unique<SegmentRank<T>>(whole, AxisPlace{x, index % x}, AxisPlace{y, index / x}));
}

template <class T>
void SegmentRanks<T>::sum_over(BlockValue value, int64_t count, int64_t stride) {
  if (count == 1 || value_elements(value, ranks[0]->extent) == 0) return;
  const auto all = static_cast<int64_t>(ranks.size());
  for (int64_t first = 0; first < all; ++first) {
    if (first / stride % count != 0) continue;
    const auto member = [&](int64_t at) -> SegmentRank<T>& {
      return *ranks[static_cast<size_t>(first + at * stride)];
    };
    for (int64_t at = 1; at < count; ++at) member(0).add_part(value, member(at).part(value));
    for (int64_t at = 1; at < count; ++at) member(at).set_part(value, member(0).part(value));
  }
}

template <class T>
void SegmentRanks<T>::run(Phase phase, SegmentRange range, bool keeps) {
  for (const auto& rank : ranks) rank->run(phase, range, keeps);
  const ValueSet writes = range_uses(range, phase, keeps).writes;
  for (int number = 0; number < kNumBlockValues; ++number) {
    const auto value = static_cast<BlockValue>(number);
    if (writes[value_index(value)] && partial_over_x(value)) sum_over(value, x_, 1);
    if (writes[value_index(value)] && partial_over_y(value)) sum_over(value, y_, x_);
  }
}

template <class T>
std::vector<double> SegmentRanks<T>::forward(const std::vector<double>& input, const Ranges& ranges,
                                             bool keeps) {
  scatter(BlockValue::kInput, input);
  for (const SegmentRange range : ranges) run(Phase::kForward, range, keeps);
  return agreed(BlockValue::kOutput);
}

template <class T>
typename Runner<T>::Backward SegmentRanks<T>::backward(const std::vector<double>& output_gradient,
                                                       const Ranges& ranges, bool accumulate) {
  scatter(BlockValue::kOutputGradient, output_gradient);
  for (const auto& rank : ranks) rank->accumulate = accumulate;
  for (size_t i = ranges.size(); i > 0; --i) {
    run(Phase::kBackwardInput, ranges[i - 1], true);
    // Nothing but the bundle may be read from here on.
    if (ranges[i - 1].begin == 0)
      for (const auto& rank : ranks) rank->forget(kept_values());
  }
  for (const SegmentRange range : ranges) run(Phase::kBackwardWeight, range, true);
  return {agreed(BlockValue::kInputGradient), whole_gradient()};
}

template <class T>
void SegmentRanks<T>::scatter(BlockValue value, const std::vector<double>& whole) {
  const int64_t width = ranks[0]->extent.width;
  for (const auto& rank : ranks) {
    std::vector<double> columns;
    for (int64_t row = 0; row < rank->extent.rows; ++row) {
      const auto first = whole.begin() + (row * y_ + rank->y.coordinate) * width;
      columns.insert(columns.end(), first, first + width);
    }
    rank->set(value, convert<T>(columns));
  }
}

/// A value that all ranks of x must have alike, bit for bit; of the columns of all ranks of y.
template <class T>
std::vector<double> SegmentRanks<T>::agreed(BlockValue value) {
  const int64_t rows = ranks[0]->extent.rows, width = ranks[0]->extent.width;
  std::vector<double> whole(static_cast<size_t>(rows * width * y_));
  for (size_t index = 0; index < ranks.size(); ++index) {
    const SegmentRank<T>& first = *ranks[index - index % static_cast<size_t>(x_)];
    SegmentRank<T>& rank = *ranks[index];
    const std::vector<T> own = rank.get(value);
    const std::vector<T> others = const_cast<SegmentRank<T>&>(first).get(value);
    EXPECT_EQ(std::memcmp(own.data(), others.data(), own.size() * sizeof(T)), 0)
        << value_name(value);
    const std::vector<double> wide = widen(own.data(), static_cast<int64_t>(own.size()));
    for (int64_t row = 0; row < rows; ++row)
      std::copy_n(wide.begin() + row * width, width,
                  whole.begin() + (row * y_ + rank.y.coordinate) * width);
  }
  return whole;
}

/// Every element from the ranks that hold it, which must have it alike.
template <class T>
std::vector<double> SegmentRanks<T>::whole_gradient() {
  std::vector<double> whole(static_cast<size_t>(unit_.elements), NAN);
  for (const auto& rank : ranks) {
    visit_parts(unit_, *rank, [&](const ParameterShape& parameter, int64_t to, int64_t from) {
      const auto value = static_cast<double>(rank->gradient[static_cast<size_t>(from)]);
      double& place = whole[static_cast<size_t>(to)];
      EXPECT_TRUE(std::isnan(place) || place == value) << parameter.name;
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
