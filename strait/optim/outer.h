// The outer optimizer of local steps (DiLoCo, SlowMo, CO2) on spans.
#pragma once

#include <cstdint>
#include <span>

namespace strait::optim {

struct OuterUpdate {
  int64_t replicas = 1;  // whose differences the sum holds
  bool nesterov = false;
  double learning_rate = 1, momentum = 0;
  double clip = 0;     // of every element of the velocity; 0 = off
  double penalty = 1;  // divides the mean difference
  double gap = 0;      // movement of an element that adds 1 to its penalty; 0 = none does
  double mixing = 0;   // share of the local weights that stays
};

/// Equally many elements each; `sent` and `fresh` may be empty: zeros.
template <class T>
struct OuterState {
  std::span<const T> sum;    // over replicas, of outer weights - local weights
  std::span<const T> sent;   // this replica's part of the sum
  std::span<const T> fresh;  // what it would send now: replaces `sent` (eager updates, 2502.12996)
  std::span<T> velocity, outer, local;
};

/// out = outer - local, rounded once.
template <class T>
void outer_gradient(std::span<const T> outer, std::span<const T> local, std::span<T> out,
                    int threads);

/// With D = (sum - sent + fresh) / replicas / (penalty + |learning_rate * velocity| / gap), where
/// the velocity is that of the step before, in fp64 for every element, rounded once:
///   velocity = clamp(momentum * velocity + D, -clip, clip)
///   outer   -= learning_rate * (velocity, or D + momentum * velocity with nesterov)
///   local    = mixing * local + (1 - mixing) * outer
/// Cost: reads two to four buffers, reads and writes three.
template <class T>
void outer_step(const OuterState<T>& state, const OuterUpdate& update, int threads);

}  // namespace strait::optim
