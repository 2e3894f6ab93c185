#include "strait/strategy/sharding/unit_values.h"

#include "strait/base/errors.h"
#include "strait/layout/layout.h"

namespace strait::strategy {

using program::Category;
using program::Lifetime;

UnitValues::UnitValues(program::Program& program, const ModelShape& shape,
                       const Placement& placement, Dtype dtype)
    : program_(program), placement_(placement), dtype_(dtype) {
  for (size_t u = 0; u < shape.units.size(); ++u) {
    const int64_t elements = shape.units[u].elements;
    const bool in_run = shape.units[u].name.starts_with("blocks.") && !classes_.empty() &&
                        classes_.back().name == "block" && classes_.back().elements == elements;
    if (in_run) {
      ++classes_.back().count;
    } else {
      const bool block = shape.units[u].name == "blocks.0";
      classes_.push_back({block ? "block" : shape.units[u].name, elements, 1});
    }
    place_.emplace_back(static_cast<int>(classes_.size()) - 1, classes_.back().count - 1);
  }
  const auto add_group = [&](const char* name, int64_t size, int64_t stride, int64_t level) {
    program_.groups.push_back({name, size, stride, level});
    return static_cast<int>(program_.groups.size()) - 1;
  };
  world_ = add_group("world", placement.ranks, 1, 0);
  inner_ = placement.optimizer == placement.ranks ? world_
                                                  : add_group("inner", placement.optimizer, 1, 0);
  if (placement.replicas() > 1 && placement.optimizer > 1)
    across_ = add_group("across", placement.replicas(), placement.optimizer, 0);
  else if (placement.optimizer == 1)
    across_ = world_;
  const bool moves = placement.weights == 1 && placement.optimizer > 1;
  shard_ = declare("w", placement.weights, moves ? Lifetime::kCarry : Lifetime::kResident,
                   Category::kWeights);
  if (placement.weights > 1) gathered_ = declare("W", 1, Lifetime::kTransient, Category::kBuffers);
}

void UnitValues::declare_gradients(const OptimizerState& state) {
  gradient_ = declare("g", placement_.gradients, Lifetime::kResident, Category::kGradients);
  if (placement_.gradients > 1) full_ = declare("G", 1, Lifetime::kTransient, Category::kBuffers);
  if (placement_.across_every_micro_step)
    reduced_ = declare("R", placement_.gradients, Lifetime::kTransient, Category::kBuffers);
  for (const std::string& name : state.names)
    moments_.push_back(
        declare(name, placement_.optimizer, Lifetime::kResident, Category::kOptimizer));
}

int UnitValues::declare(const std::string& letter, int64_t span, Lifetime lifetime,
                        Category category) {
  const int first = static_cast<int>(program_.arrays.size());
  for (const UnitClass& unit_class : classes_) {
    program::ValueArray array;
    array.name = letter + "." + unit_class.name;
    array.count = unit_class.count;
    array.dtype = dtype_;
    array.partition = split_unit(unit_class.elements, span, placement_.ranks);
    array.group = span == 1 ? -1 : inner_;
    array.lifetime = lifetime;
    array.category = category;
    program_.arrays.push_back(std::move(array));
  }
  return first;
}

program::Operand UnitValues::operand(UnitValue value, int64_t unit, program::Role role,
                                     int64_t moment) const {
  int first = -1;
  switch (value) {
    case UnitValue::kShard:
      first = shard_;
      break;
    case UnitValue::kGathered:
      first = gathered_;
      break;
    case UnitValue::kGradient:
      first = gradient_;
      break;
    case UnitValue::kFull:
      first = full_;
      break;
    case UnitValue::kReduced:
      first = reduced_;
      break;
    case UnitValue::kMoment:
      first = moments_[moment];
      break;
  }
  ensure(first >= 0, "unit value used but not declared by this placement");
  const auto& [unit_class, index] = place_[unit];
  return {first + unit_class, {index, -1, 0}, role};
}

program::Partition UnitValues::partition(int64_t unit) const {
  return split_unit(classes_[place_[unit].first].elements, placement_.optimizer, placement_.ranks);
}

}  // namespace strait::strategy
