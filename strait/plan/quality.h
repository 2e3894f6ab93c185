// What policies of local steps cost in loss, as published or as measured with Strait.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "strait/strategy/sync/policy.h"

namespace strait::plan {

/// An outer optimizer's keys. A figure without them is of the policy's defaults.
struct OuterKeys {
  double learning_rate = 0, momentum = 0, clip = 0;
  bool operator==(const OuterKeys&) const = default;
};

/// Loss of the outer weights minus the loss of a gradient in every step, at equal tokens.
struct QualityRow {
  const char* policy;
  bool late;   // a result is taken up one round late
  bool eager;  // and its own part is replaced by the newest
  int64_t replicas, period;
  double parameters;
  double gap_nats;  // per token
  const char* source;
  bool codecs = false;  // weights, gradients or updates are compressed in every step
  int64_t delay = 1;    // steps until a result is taken up, where that is not a round
  bool coded = false;   // what replicas send had 4 bits
  std::optional<OuterKeys> outer = {};
  bool other_keys = false;  // published with an outer optimizer that is not `outer`
};

std::span<const QualityRow> quality_table();

/// The row nearest to a policy. `extrapolated`: the policy has more replicas, longer rounds, later
/// results or fewer bits, or the model is smaller, than what was measured, or the outer optimizer
/// is another, so that it may cost more. `distance`: the sum of the logarithms of the ratios of
/// replicas, periods, delays and parameters.
struct QualityCost {
  QualityRow known;
  bool extrapolated = false;
  double distance = 0;
};

/// The row of the least distance. nullopt when the table has no row of this policy, or of it with
/// `codecs` in every step. Which one it is does not depend on the outer optimizer and its codec.
std::optional<QualityCost> quality_of(const strategy::Policy& policy, double parameters,
                                      bool codecs = false);

}  // namespace strait::plan
