#include "strait/optim/outer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "strait/optim/split.h"

namespace strait::optim {

template <class T>
void outer_gradient(std::span<const T> outer, std::span<const T> local, std::span<T> out,
                    int threads) {
  const int64_t count = static_cast<int64_t>(out.size());
  for_each_chunk(count, kUpdateChunkElements, threads, [&](size_t begin, size_t end) {
    for (size_t at = begin; at < end; ++at) out[at] = outer[at] - local[at];
  });
}

namespace {

/// What the replicas together say about one element.
template <class T>
double mean_difference(const OuterState<T>& state, const OuterUpdate& update, size_t at) {
  double sum = state.sum[at];
  if (!state.sent.empty()) sum -= static_cast<double>(state.sent[at]);
  if (!state.fresh.empty()) sum += static_cast<double>(state.fresh[at]);
  return sum / static_cast<double>(update.replicas);
}

template <class T>
double penalty(const OuterState<T>& state, const OuterUpdate& update, size_t at) {
  if (update.gap == 0) return update.penalty;
  const double moved = update.learning_rate * static_cast<double>(state.velocity[at]);
  return update.penalty + std::abs(moved) / update.gap;
}

template <class T>
void step_element(const OuterState<T>& state, const OuterUpdate& update, size_t at) {
  const double difference = mean_difference(state, update, at) / penalty(state, update, at);
  double velocity = update.momentum * static_cast<double>(state.velocity[at]) + difference;
  if (update.clip > 0) velocity = std::clamp(velocity, -update.clip, update.clip);
  const double direction = update.nesterov ? difference + update.momentum * velocity : velocity;
  const double outer = static_cast<double>(state.outer[at]) - update.learning_rate * direction;
  state.velocity[at] = static_cast<T>(velocity);
  state.outer[at] = static_cast<T>(outer);
  // Without mixing the same bits on all replicas.
  state.local[at] =
      update.mixing == 0
          ? state.outer[at]
          : static_cast<T>(update.mixing * static_cast<double>(state.local[at]) +
                           (1 - update.mixing) * static_cast<double>(state.outer[at]));
}

}  // namespace

template <class T>
void outer_step(const OuterState<T>& state, const OuterUpdate& update, int threads) {
  const int64_t count = static_cast<int64_t>(state.outer.size());
  for_each_chunk(count, kUpdateChunkElements, threads, [&](size_t begin, size_t end) {
    for (size_t at = begin; at < end; ++at) step_element(state, update, at);
  });
}

template void outer_gradient(std::span<const float>, std::span<const float>, std::span<float>, int);
template void outer_gradient(std::span<const double>, std::span<const double>, std::span<double>,
                             int);
template void outer_step(const OuterState<float>&, const OuterUpdate&, int);
template void outer_step(const OuterState<double>&, const OuterUpdate&, int);

}  // namespace strait::optim
