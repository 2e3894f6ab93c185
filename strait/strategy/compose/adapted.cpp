#include "strait/strategy/compose/adapted.h"

namespace strait::strategy {

AdaptedPrograms::AdaptedPrograms(const Design& design)
    : design_(design), layers_(adapted_layers(design.shape, design.placement.layers)) {}

const program::ProgramSet& AdaptedPrograms::with(const LayerSettings& settings) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<const program::ProgramSet>& set = sets_[settings];
  if (!set)
    set = std::make_unique<const program::ProgramSet>(
        compose_with_layers(design_, with_settings(design_.placement.layers, layers_, settings)));
  return *set;
}

}  // namespace strait::strategy
