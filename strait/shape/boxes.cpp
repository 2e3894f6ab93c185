#include "strait/shape/boxes.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/base/errors.h"

namespace strait {
namespace {

/// The parts of the dim that `split` cuts.
std::vector<int64_t> parts_of(const ParameterShape& parameter, const AxisSplit& split) {
  ensure(split.dim < static_cast<int>(parameter.dims.size()), "localize: a split of no dim");
  const int64_t extent = parameter.dims[static_cast<size_t>(split.dim)];
  if (split.parts.empty()) return {extent};
  int64_t sum = 0;
  for (const int64_t part : split.parts) sum += part;
  ensure(sum == extent, "localize: the parts of a split dim are not as long as the dim");
  return split.parts;
}

[[noreturn]] void refuse_size(const ParameterShape& parameter, const char* axis, int64_t size,
                              int64_t part) {
  int64_t nearest = size;
  while (part % nearest != 0) --nearest;
  ErrorPlace place;
  place.key = fmt::format("mesh.axes.{}", axis);
  throw UserError(fmt::format("{} = {} does not divide a part of {} in {}; nearest below: {}",
                              *place.key, size, part, parameter.name, nearest),
                  place);
}

/// The split with its parts; none where the axis has one rank.
AxisSplit effective(const ParameterShape& parameter, const AxisSplit& split, const char* axis,
                    int64_t size) {
  if (split.dim < 0 || size == 1) return {};
  AxisSplit full{split.dim, parts_of(parameter, split)};
  for (const int64_t part : full.parts)
    if (part % size != 0) refuse_size(parameter, axis, size, part);
  return full;
}

void cut(ParameterShape& parameter, const AxisSplit& split, int64_t size) {
  if (split.dim >= 0) parameter.dims[static_cast<size_t>(split.dim)] /= size;
}

bool is_split(const ParameterShape& parameter) {
  return parameter.split.x.dim >= 0 || parameter.split.y.dim >= 0;
}

Section section_of(const ParameterShape& parameter) {
  return {0, 0, parameter.weight_decay, parameter.split.x.dim >= 0, parameter.split.y.dim >= 0};
}

bool same_kind(const Section& a, const Section& b) {
  return a.weight_decay == b.weight_decay && a.split_x == b.split_x && a.split_y == b.split_y;
}

/// In the order in which sections stand in a unit.
std::vector<Section> section_kinds() {
  std::vector<Section> kinds;
  for (const bool decay : {true, false})
    for (const bool x : {true, false})
      for (const bool y : {true, false}) kinds.push_back({0, 0, decay, x, y});
  return kinds;
}

/// A unit without splits keeps its order, whatever it is.
LocalUnit whole_unit(const UnitShape& unit, const std::vector<ParameterShape>& parameters) {
  UnitShape shape = unit;
  shape.parameters = parameters;
  return {std::move(shape), parameters};
}

void cut_dim(Box& box, const AxisSplit& split, AxisPlace place) {
  if (split.dim < 0) return;
  std::vector<DimRange>& ranges = box[static_cast<size_t>(split.dim)];
  ranges.clear();
  int64_t begin = 0;
  for (const int64_t part : split.parts) {
    const int64_t share = part / place.size;
    ranges.push_back({begin + place.coordinate * share, begin + (place.coordinate + 1) * share});
    begin += part;
  }
}

}  // namespace

LocalUnit localize(const UnitShape& unit, int64_t x, int64_t y) {
  std::vector<ParameterShape> parameters = unit.parameters;
  for (ParameterShape& parameter : parameters) {
    ParameterSplit& split = parameter.split;
    split.x = effective(parameter, split.x, "x", x);
    split.y = effective(parameter, split.y, "y", y);
    ensure(split.x.dim < 0 || split.x.dim != split.y.dim, "localize: one dim split over x and y");
  }
  if (std::none_of(parameters.begin(), parameters.end(), is_split))
    return whole_unit(unit, parameters);
  LocalUnit local{{unit.name, {}, {}, 0}, {}};
  for (Section section : section_kinds()) {
    section.begin = local.shape.elements;
    for (const ParameterShape& parameter : parameters) {
      if (!same_kind(section, section_of(parameter))) continue;
      local.logical.push_back(parameter);
      ParameterShape& held = local.shape.parameters.emplace_back(parameter);
      held.offset = local.shape.elements;
      cut(held, parameter.split.x, x);
      cut(held, parameter.split.y, y);
      local.shape.elements += held.elements();
    }
    section.end = local.shape.elements;
    if (section.end > section.begin) local.shape.sections.push_back(section);
  }
  return local;
}

ElementRuns parameter_runs(const ParameterShape& logical, AxisPlace x, AxisPlace y) {
  Box box;
  for (const int64_t dim : logical.dims) box.push_back({{0, dim}});
  cut_dim(box, logical.split.x, x);
  cut_dim(box, logical.split.y, y);
  return shifted(box_runs(logical.dims, box), logical.offset);
}

}  // namespace strait
