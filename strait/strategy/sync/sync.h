// The pass of local steps: what replicas of the model do at the borders of rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strait/draft/draft.h"
#include "strait/program/program_set.h"
#include "strait/shape/shape.h"
#include "strait/strategy/sync/policy.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// What checkpoints call the state of the outer optimizer; its weights are "master".
inline constexpr const char* kOuterMomentumState = "outer_momentum";
inline constexpr const char* kOuterGradientState = "outer_gradient";

/// What one program of a border does with one fragment, or, to show the outer weights, with all.
enum class BorderPart : uint8_t {
  kAtOnce,    // "border-p": sends, waits, and takes the result up
  kLast,      // "last-p": the same behind the last step of a run, where no border was due
  kLaunch,    // "launch-p": computes the differences and starts their transfer
  kLand,      // "land-p": takes the result up
  kLandLast,  // "land-last-p": at the end of a run, and leaves nothing that could be sent anew
  kRound,     // "round-p": sends, and takes up what the round before sent
  kRelaunch,  // "relaunch-p": starts a transfer anew that was under way when a run was saved
  kExchange,  // "exchange": outer and local weights change places
};

struct Border {
  BorderPart part = BorderPart::kExchange;
  int64_t fragment = 0;
};

/// Kind of its programs.
std::string border_kind(const Border& border);
/// Those that a policy needs.
std::vector<Border> borders_of(const Policy& policy);

/// The rows of the table that say when borders run: behind a step, which is what the purpose `step`
/// asks for, or with it, for borders whose programs `in_step` says hold it; at the start of a run,
/// which launches again what was under way; and at its end, which takes that up.
std::vector<program::Rule> border_rules(const Policy& policy, const std::string& step,
                                        const std::function<bool(const Border&)>& in_step);

/// Writes the operations of a border into a draft whose state is placed. Declares the outer
/// weights ("o", which checkpoints call "master"), the outer momentum and what is sent.
void synchronise(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
                 const Policy& policy, const Border& border);

}  // namespace strait::strategy
