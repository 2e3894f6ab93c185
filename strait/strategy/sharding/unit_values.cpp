#include "strait/strategy/sharding/unit_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "strait/base/errors.h"
#include "strait/codec/error_feedback.h"
#include "strait/layout/borders.h"
#include "strait/layout/layout.h"

namespace strait::strategy {

using codec::CodecKind;
using program::Category;
using program::Group;
using program::Lifetime;
using program::Partition;

namespace {

/// Neighbours where replicas are the outermost axis; else a list for each.
Group ranks_of_a_replica(const Mesh& mesh) {
  const MeshAxis& replica = mesh.axis("replica");
  if (replica.size == 1) return {"world", mesh.ranks(), 1};
  if (replica.stride * replica.size == mesh.ranks()) return {"replica", replica.stride, 1};
  std::vector<std::vector<int64_t>> lists(static_cast<size_t>(replica.size));
  for (int64_t rank = 0; rank < mesh.ranks(); ++rank)
    lists[static_cast<size_t>(mesh.coordinate(rank, "replica"))].push_back(rank);
  Group group{"replica", mesh.ranks() / replica.size};
  group.lists = program::MemberLists(std::move(lists));
  return group;
}

/// How far apart neighbouring positions lie: ranks along z, where there are any, and those that
/// share sequences lie between those along data.
int64_t stride_of_positions(const Mesh& mesh) {
  for (const char* name : {"z", "sequence"})
    if (mesh.axis(name).size > 1) return mesh.axis(name).stride;
  return mesh.axis("data").stride;
}

}  // namespace

UnitValues::UnitValues(draft::Draft& draft, const ModelShape& shape, const Placement& placement,
                       const Cluster& cluster, const draft::StepOptions& options)
    : program_(draft.program),
      shape_(shape),
      placement_(placement),
      types_(types_of(options.dtype)),
      place_(shape.units.size(), {-1, 0}),
      local_steps_(options.local_steps) {
  for (const int64_t unit : draft.units) classify(unit, shape.units[static_cast<size_t>(unit)]);
  declare_groups(draft.mesh, cluster);
  const bool moves = placement.weights < placement.optimizer;
  const Lifetime lifetime = moves ? Lifetime::kCarry : Lifetime::kResident;
  const int group = group_of_span(placement.weights);
  const char* const state = local_steps_ ? kLocalState : kMasterState;
  first_[index_of(UnitValue::kShard)] =
      declare({"w", lifetime, Category::kWeights, placement.has_master() ? "" : state},
              [&](const UnitClass& units) -> Form {
                if (!keeps_pieces())
                  return numbers(units.elements, placement_.weights, group,
                                 placement_.has_master() ? types_.compute : types_.state);
                const PieceFormat format = weight_pieces_of(units);
                Partition bytes = format.bytes(placement_.optimizer);
                bytes.grain *= placement_.optimizer / placement_.weights;
                return {bytes, group, Dtype::kByte};
              });
  if (placement.has_master())
    first_[index_of(UnitValue::kMaster)] =
        declare({"p", Lifetime::kResident, Category::kOptimizer, state}, [&](int64_t elements) {
          return numbers(elements, placement_.optimizer, inner_, types_.state);
        });
}

/// Neighbouring blocks of one size and with the same borders are a class; the first of them is
/// called "block".
void UnitValues::classify(int64_t unit, const UnitShape& shape) {
  const auto is_run = [](const UnitClass& known) { return known.name.starts_with("block"); };
  const bool block = shape.name.starts_with("blocks.");
  const bool in_run = block && !classes_.empty() && is_run(classes_.back()) &&
                      classes_.back().elements == shape.elements &&
                      borders_of(shape_, classes_.back().first_unit) == borders_of(shape_, unit) &&
                      classes_.back().first_unit + classes_.back().count == unit;
  const bool first = block && std::ranges::none_of(classes_, is_run);
  if (in_run)
    ++classes_.back().count;
  else
    classes_.push_back({first ? "block" : shape.name, shape.elements, unit, 1});
  place_[static_cast<size_t>(unit)] = {static_cast<int>(classes_.size()) - 1,
                                       classes_.back().count - 1};
}

void UnitValues::declare_groups(const Mesh& mesh, const Cluster& cluster) {
  const int64_t apart = stride_of_positions(mesh);
  const auto add = [&](std::string name, int64_t size, int64_t positions,
                       std::vector<int64_t> nest) {
    Group group{std::move(name), size, positions * apart, 0, std::move(nest)};
    return draft::add_group(program_, cluster, std::move(group));
  };
  const auto level_name = [&](int64_t size, int64_t positions) {
    const int64_t farthest = (size - 1) * positions * apart;
    return cluster.levels[farthest == 0 ? 0 : cluster.level_between(0, farthest)].name;
  };
  const int64_t replicas = placement_.replicas();
  const bool one_hop = placement_.hops.size() <= 1;
  world_ = draft::add_group(program_, cluster, {"world", program_.ranks, 1});
  replica_ = draft::add_group(program_, cluster, ranks_of_a_replica(mesh));
  std::vector<int64_t> nest;
  int64_t positions = 1;
  for (const int64_t hop : placement_.hops) {
    nest.push_back(hop);
    const std::string level = level_name(hop, positions);
    // A part of the outermost level must not be called as the whole of it.
    const std::string part = level == "world" ? fmt::format("{} of world", hop) : level;
    const std::string name = one_hop ? "inner" : positions == 1 ? part : level + " rail";
    hops_.push_back(add(name, hop, positions, positions == 1 ? std::vector<int64_t>{} : nest));
    positions *= hop;
  }
  inner_ = hops_.empty() ? add("inner", 1, 1, {}) : hops_.back();
  if (replicas > 1 && placement_.optimizer > 1) {
    across_ = add("across", replicas, placement_.optimizer, {});
    nest.push_back(replicas);
    across_nested_ = add("across shards", replicas, placement_.optimizer, nest);
  } else if (placement_.optimizer == 1) {
    across_ = across_nested_ = add("data", placement_.ranks, 1, {});
  }
  if (placement_.secondary > 1) secondary_ = add("secondary", placement_.secondary, 1, {});
}

int UnitValues::group_of_span(int64_t span) const {
  return span == 1 ? -1 : hops_[static_cast<size_t>(placement_.hops_in(span) - 1)];
}

Partition UnitValues::split(int64_t elements, int64_t span) const {
  return split_unit(elements, span, placement_.ranks);
}

UnitValues::Form UnitValues::numbers(int64_t elements, int64_t span, int group, Dtype dtype) const {
  return {split(elements, span), span == 1 ? -1 : group, dtype};
}

PieceFormat UnitValues::pieces(const codec::CodecSpec& codec, const UnitClass& units,
                               const Partition& partition, int group) const {
  PieceFormat format{codec, partition, group, 0, 0};
  const codec::BorderedCodec bordered = bordered_codec(codec, shape_, units.first_unit, partition);
  format.borders = bordered.borders;
  format.piece_bytes = longest_piece(bordered, partition, types_.compute);
  format.metadata_bytes = bordered.scale_bytes;
  return format;
}

PieceFormat UnitValues::weight_pieces_of(const UnitClass& units) const {
  if (placement_.has_master())
    return pieces(placement_.codecs.update, units, split(units.elements, placement_.optimizer),
                  inner_);
  return pieces(placement_.codecs.weights, units, split(units.elements, placement_.weights),
                group_of_span(placement_.weights));
}

PieceFormat UnitValues::weight_pieces(int64_t unit) const {
  return weight_pieces_of(class_of(unit));
}

PieceFormat UnitValues::secondary_pieces_of(const UnitClass& units) const {
  return pieces(placement_.codecs.secondary, units, split(units.elements, placement_.secondary),
                secondary_);
}

PieceFormat UnitValues::secondary_pieces(int64_t unit) const {
  return secondary_pieces_of(class_of(unit));
}

PieceFormat UnitValues::gradient_pieces(int64_t unit, int64_t hop) const {
  const bool across = hop == num_hops();
  PieceFormat format =
      pieces(placement_.codecs.gradients.at(static_cast<size_t>(hop)), class_of(unit),
             split(elements_of(unit), across ? placement_.ranks : placement_.span_of(hop + 1)),
             across ? across_nested_ : hops_[static_cast<size_t>(hop)]);
  if (placement_.layers.empty()) return format;
  format.runs = placement_.layers.at(static_cast<size_t>(unit));
  format.piece_bytes = format.runs.piece_bytes(types_.state);
  format.metadata_bytes = format.runs.metadata_bytes();
  return format;
}

bool UnitValues::equal_layers(const UnitClass& units) const {
  if (placement_.layers.empty()) return true;
  const auto first = placement_.layers.begin() + units.first_unit;
  return std::all_of(first, first + units.count,
                     [&](const codec::Runs& runs) { return runs.runs == first->runs; });
}

std::vector<program::Operand> UnitValues::declare_by_layers(
    const std::string& letter, const std::function<Form(int64_t)>& form) {
  std::vector<program::Operand> operands(place_.size());
  const auto add = [&](const std::string& name, int64_t first_unit, int64_t count) {
    const Form of = form(first_unit);
    program::ValueArray array;
    array.name = letter + "." + name;
    array.count = count;
    array.dtype = of.dtype;
    array.partition = of.partition;
    array.group = of.group;
    for (int64_t i = 0; i < count; ++i)
      operands[static_cast<size_t>(first_unit + i)] = {static_cast<int>(program_.arrays.size()),
                                                       {i}};
    program_.arrays.push_back(std::move(array));
  };
  for (const UnitClass& units : classes_) {
    if (equal_layers(units)) {
      add(units.name, units.first_unit, units.count);
      continue;
    }
    for (int64_t i = 0; i < units.count; ++i)
      add(fmt::format("{}.{}", units.name, i), units.first_unit + i, 1);
  }
  return operands;
}

std::vector<program::Operand> UnitValues::declare_pieces(const std::string& letter, int64_t hop) {
  return declare_by_layers(letter, [&](int64_t unit) -> Form {
    const PieceFormat format = gradient_pieces(unit, hop);
    return {format.bytes(program_.groups[format.group].size), -1, Dtype::kByte};
  });
}

void UnitValues::declare_gathered(bool secondary) {
  if (copies())
    first_[index_of(UnitValue::kGathered)] =
        declare({"W"}, [&](int64_t elements) { return numbers(elements, 1, -1, types_.compute); });
  const codec::CodecSpec& codec =
      placement_.has_master() ? placement_.codecs.update : placement_.codecs.weights;
  if (placement_.weights > 1 && codec.kind != CodecKind::kNone && !is_numbers(codec))
    first_[index_of(UnitValue::kPieces)] = declare({"E"}, [&](const UnitClass& units) -> Form {
      const PieceFormat format = weight_pieces_of(units);
      return {format.bytes(program_.groups[format.group].parts()), -1, Dtype::kByte};
    });
  if (!secondary || placement_.secondary == 1) return;
  const bool coded_copy = placement_.codecs.secondary.kind != CodecKind::kNone &&
                          !is_numbers(placement_.codecs.secondary);
  first_[index_of(UnitValue::kSecondary)] = declare(
      {"s", Lifetime::kResident, Category::kSecondary}, [&](const UnitClass& units) -> Form {
        if (!coded_copy)
          return {split(units.elements, placement_.secondary), secondary_, types_.compute};
        return {secondary_pieces_of(units).bytes(placement_.secondary), secondary_, Dtype::kByte};
      });
  if (coded_copy)
    first_[index_of(UnitValue::kSecondaryPieces)] =
        declare({"F"}, [&](const UnitClass& units) -> Form {
          return {secondary_pieces_of(units).bytes(placement_.secondary), -1, Dtype::kByte};
        });
}

void UnitValues::declare_gradients(const draft::StepOptions& options) {
  const auto shard = [&](int64_t span) {
    return [this, span](int64_t elements) {
      return numbers(elements, span, group_of_span(span), types_.state);
    };
  };
  // Where a unit is updated as soon as its gradient is final, nothing needs it any longer then.
  const bool brief = options.in_backward && options.accumulation == 1;
  const Lifetime lifetime = brief ? Lifetime::kTransient : Lifetime::kResident;
  first_[index_of(UnitValue::kGradient)] =
      declare({"g", lifetime, Category::kGradients}, shard(placement_.gradients));
  if (placement_.gradients > 1) first_[index_of(UnitValue::kFull)] = declare({"G"}, shard(1));
  if (placement_.across_every_micro_step)
    first_[index_of(UnitValue::kReduced)] = declare({"R"}, shard(placement_.gradients));
  for (const draft::Moment& moment : options.optimizer) {
    const int first =
        declare({moment.letter, Lifetime::kResident, Category::kOptimizer, moment.state},
                shard(placement_.optimizer));
    if (num_moments_++ == 0) first_[index_of(UnitValue::kMoment)] = first;
  }
  if (low_rank()) declare_low_rank();
  for (size_t hop = 0; hop < placement_.codecs.gradients.size(); ++hop) {
    sent_.emplace_back();
    received_.emplace_back();
    if (placement_.codecs.gradients[hop].kind == CodecKind::kNone || low_rank()) continue;
    const std::string number = std::to_string(hop);
    if (static_cast<int64_t>(hop) == num_hops() && sums_numbers(placement_.codecs.gradients[hop])) {
      const int first = declare({"S" + number}, [&](int64_t elements) {
        return numbers(elements, placement_.optimizer, inner_, Dtype::kBfloat16);
      });
      for (const auto& [unit_class, index] : place_)
        sent_.back().push_back({first + unit_class, {index}});
      continue;
    }
    sent_.back() = declare_pieces("S" + number, static_cast<int64_t>(hop));
    received_.back() = declare_pieces("T" + number, static_cast<int64_t>(hop));
  }
  declare_residuals();
}

void UnitValues::declare_low_rank() {
  const auto whole = [this](auto elements_of_unit) {
    return [this, elements_of_unit](int64_t unit) -> Form {
      const int64_t elements = elements_of_unit(low_rank_of(unit));
      return {{elements, elements}, -1, types_.state};
    };
  };
  left_ = declare_by_layers("P", whole(&left_elements));
  right_ = declare_by_layers("V", whole(&right_elements));
  const auto kept = whole(&kept_elements);
  const int factors =
      declare({"q", Lifetime::kResident, Category::kGradients},
              [&](const UnitClass& units) -> Form { return kept(units.first_unit); });
  first_[index_of(UnitValue::kFactors)] = factors;
  // Not by unit: their elements are none of the unit's. The same on all ranks.
  for (size_t i = 0; i < classes_.size(); ++i)
    program_.arrays[static_cast<size_t>(factors) + i].address.state =
        "right_factors/" + classes_[i].name;
}

UnitValues::Naming UnitValues::residual_naming(int64_t nth) {
  return {fmt::format("e{}", nth), Lifetime::kResident, Category::kGradients,
          kResidualState + std::to_string(nth), true};
}

void UnitValues::declare_residuals() {
  const int64_t hops = static_cast<int64_t>(placement_.codecs.gradients.size());
  residual_.assign(static_cast<size_t>(hops) + 1, -1);
  for (int64_t hop = 0; hop < hops; ++hop) {
    if (!placement_.codecs.gradients[static_cast<size_t>(hop)].error_feedback) continue;
    // What a rank encodes on a hop is what the hops inside have left it.
    const int64_t span = placement_.span_of(hop);
    residual_[static_cast<size_t>(hop)] = declare(residual_naming(hop), [&](int64_t elements) {
      return numbers(elements, span, group_of_span(span), Dtype::kFloat32);
    });
    if (hop == num_hops() && !low_rank()) declare_second_residual(hop + 1);
  }
}

/// Of the sums across replicas, which are encoded again by those who own their parts.
void UnitValues::declare_second_residual(int64_t nth) {
  const int first = declare(residual_naming(nth), [&](const UnitClass& units) -> Form {
    const PieceFormat format = gradient_pieces(units.first_unit, nth - 1);
    if (format.runs.runs.empty()) return {format.partition, across_nested_, Dtype::kFloat32};
    const int64_t grain = format.runs.part_elements();
    return {{format.runs.parts * grain, grain}, across_nested_, Dtype::kFloat32};
  });
  residual_[static_cast<size_t>(nth)] = first;
  for (size_t i = 0; i < classes_.size(); ++i)
    for (const codec::Run& run : gradient_pieces(classes_[i].first_unit, nth - 1).runs.runs)
      program_.arrays[static_cast<size_t>(first) + i].address.stretches.push_back(run.elements);
}

int64_t UnitValues::residual_ends(int64_t nth) const {
  const size_t hop = std::min(static_cast<size_t>(nth), placement_.codecs.gradients.size() - 1);
  return codec::feedback_options(placement_.codecs.gradients[hop]).reset_every;
}

template <class FormOf>
int UnitValues::declare(const Naming& naming, const FormOf& form) {
  const int first = static_cast<int>(program_.arrays.size());
  for (const UnitClass& unit_class : classes_) {
    Form shape;
    if constexpr (std::is_invocable_v<FormOf, const UnitClass&>)
      shape = form(unit_class);
    else
      shape = form(unit_class.elements);
    program::ValueArray array;
    array.name = naming.letter + "." + unit_class.name;
    array.count = unit_class.count;
    array.dtype = shape.dtype;
    array.partition = shape.partition;
    array.group = shape.group;
    array.lifetime = naming.lifetime;
    array.category = naming.category;
    if (!naming.state.empty())
      array.address = {naming.state, unit_class.first_unit, naming.by_sender, local_steps_};
    program_.arrays.push_back(std::move(array));
  }
  return first;
}

program::Operand UnitValues::operand(UnitValue value, int64_t unit, int64_t nth) const {
  if (value == UnitValue::kSent)
    return sent_.at(static_cast<size_t>(nth)).at(static_cast<size_t>(unit));
  if (value == UnitValue::kReceived)
    return received_.at(static_cast<size_t>(nth)).at(static_cast<size_t>(unit));
  if (value == UnitValue::kLeft) return left_.at(static_cast<size_t>(unit));
  if (value == UnitValue::kRight) return right_.at(static_cast<size_t>(unit));
  int first = first_[index_of(value)];
  if (value == UnitValue::kMoment)
    first += static_cast<int>(nth * static_cast<int64_t>(classes_.size()));
  if (value == UnitValue::kResidual) first = residual_.at(static_cast<size_t>(nth));
  ensure(first >= 0, "unit value used but not declared by this placement");
  const auto& [unit_class, index] = place_[unit];
  return {first + unit_class, {index}};
}

Partition UnitValues::partition(int64_t unit, int64_t hops) const {
  return split(elements_of(unit), placement_.span_of(hops));
}

}  // namespace strait::strategy
