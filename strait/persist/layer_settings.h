// The settings of a compressed all-reduce's layers, chosen anew while a run trains.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/json.h"
#include "strait/comm/communicator.h"
#include "strait/runtime/runner.h"
#include "strait/runtime/state.h"
#include "strait/strategy/compose/adapted.h"

namespace strait::persist {

/// A choice, and the step after which it was made.
struct ChosenSettings {
  int64_t step = 0;
  strategy::SettingsChoice choice;
};
/// {step, settings: ["qsgd3/512"], bytes_per_step, uniform_bytes_per_step, error, allowed_error},
/// the bytes of all ranks; and back. Errors (UserError, naming `source`): another number of layers,
/// or settings that these layers do not have.
Json to_json(const ChosenSettings& chosen, const std::vector<strategy::AdaptedLayer>& layers);
ChosenSettings chosen_from_json(const Json& json, const std::vector<strategy::AdaptedLayer>& layers,
                                const std::string& source);

/// Makes rank 0's settings those of all ranks, then lets `received` look at them. Errors:
/// InternalError, on every rank and naming a rank, when ranks do not hold what rank 0 has chosen;
/// PeerLost, Timeout. Cost: two small all-reduces on the lane of bookkeeping.
void agree_on_settings(comm::World& world, strategy::LayerSettings& settings, int64_t step,
                       double deadline_seconds,
                       const std::function<void(strategy::LayerSettings&)>& received = {});

/// Of one rank. Not thread-safe.
class LayerSettings {
 public:
  /// `programs` is shared by the ranks of a process and outlives this, as the rest does.
  LayerSettings(strategy::AdaptedPrograms& programs, const strategy::AdaptPolicy& policy,
                const runtime::Site& site, runtime::Runner& runner)
      : programs_(programs), policy_(policy), site_(site), runner_(runner) {}

  /// What a checkpoint of the same layers holds.
  void resume(const ChosenSettings& chosen);
  /// After a step that ends with a choice: rank 0 makes it, all ranks take it up. Returns it.
  const ChosenSettings* choose_if_due(
      int64_t step, const std::function<void(strategy::LayerSettings&)>& received = {});
  /// The last choice; none: the uniform settings.
  const std::optional<ChosenSettings>& chosen() const { return chosen_; }

 private:
  strategy::SettingsChoice choose() const;
  void take_up();

  strategy::AdaptedPrograms& programs_;
  const strategy::AdaptPolicy policy_;
  const runtime::Site site_;
  runtime::Runner& runner_;
  std::optional<ChosenSettings> chosen_;
};

}  // namespace strait::persist
