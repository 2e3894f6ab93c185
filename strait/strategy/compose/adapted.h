// The programs of a run whose layers' settings change while it trains: one set per choice, composed
// when it is first asked for.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "strait/strategy/adapt/policy.h"
#include "strait/strategy/compose/design.h"

namespace strait::strategy {

/// Thread-safe; ranks of one process share it. Sets live as long as this.
class AdaptedPrograms {
 public:
  /// `design`, with a compressed all-reduce whose policy adapts, outlives this.
  explicit AdaptedPrograms(const Design& design);

  const std::vector<AdaptedLayer>& layers() const { return layers_; }
  /// Ranks that the layers are cut over.
  int64_t parts() const { return design_.placement.replicas(); }
  /// The run's programs with these settings, verified: resident values are those of the design's.
  /// The first call for a choice composes.
  const program::ProgramSet& with(const LayerSettings& settings);

 private:
  const Design& design_;
  const std::vector<AdaptedLayer> layers_;
  std::mutex mutex_;
  std::map<LayerSettings, std::unique_ptr<const program::ProgramSet>> sets_;
};

}  // namespace strait::strategy
