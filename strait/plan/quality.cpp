#include "strait/plan/quality.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace strait::plan {
namespace {

constexpr const char* kDiLoCo = "published, arXiv 2311.08105, table 2";
constexpr const char* kTwo = "published, arXiv 2501.18512, table 5";
constexpr const char* kFour = "published, arXiv 2501.18512, table 6";
constexpr const char* kEager = "published, arXiv 2502.12996";
constexpr const char* kOurs = "measured with Strait, 3 seeds, docs/local-steps.md";
constexpr const char* kOurCodecs = "measured with Strait, 3 seeds, docs/codecs.md";

constexpr OuterKeys kFaster = {0.7, 0.9, 0};
constexpr OuterKeys kEagerKeys = {1.2, 0, 0};  // the best of those tried
constexpr OuterKeys kCo2Keys = {1, 0.2, 0.01};

constexpr QualityRow kRows[] = {
    // policy, late, eager, replicas, period, parameters, nats, source, codecs, delay, coded, outer
    {"every-step", false, false, 1, 1, 1e9, 0.00, "the baseline"},
    {"every-step", false, false, 4, 1, 0.8e6, 0.003, kOurCodecs, true},
    {"diloco", false, false, 2, 30, 0.8e6, 0.059, kOurs},
    {"diloco", false, false, 2, 30, 35e6, 0.03, kTwo},
    {"diloco", false, false, 2, 30, 100e6, 0.02, kTwo},
    {"diloco", false, false, 2, 30, 300e6, 0.01, kTwo},
    {"diloco", false, false, 2, 30, 1e9, 0.00, kTwo},
    {"diloco", false, false, 8, 500, 150e6, -0.018, kDiLoCo},
    {"diloco", true, true, 2, 30, 0.8e6, 0.063, kOurs, false, 1, false, kEagerKeys},
    {"diloco", true, true, 2, 30, 500e6, 0.02, kEager, false, 1, true, kEagerKeys, true},
    {"diloco", true, false, 2, 30, 500e6, 0.34, kEager},
    {"co2", true, false, 2, 12, 0.8e6, 0.081, kOurs, false, 1, false, kCo2Keys},
    {"streaming-diloco", false, false, 2, 30, 0.8e6, 0.015, kOurs, false, 1, true, kFaster},
    {"streaming-diloco", false, false, 2, 30, 0.8e6, 0.030, kOurs, false, 14, true, kFaster},
    {"streaming-diloco", false, false, 2, 100, 0.8e6, 0.035, kOurs, false, 1, true, kFaster},
    {"streaming-diloco", false, false, 2, 30, 35e6, 0.02, kTwo, false, 1, true},
    {"streaming-diloco", false, false, 2, 30, 100e6, 0.02, kTwo, false, 1, true},
    {"streaming-diloco", false, false, 2, 30, 300e6, 0.01, kTwo, false, 1, true},
    {"streaming-diloco", false, false, 2, 30, 1e9, -0.01, kTwo, false, 1, true},
    {"streaming-diloco", false, false, 2, 100, 35e6, 0.05, kTwo, false, 1, true},
    {"streaming-diloco", false, false, 2, 100, 100e6, 0.03, kTwo, false, 1, true},
    {"streaming-diloco", false, false, 2, 100, 300e6, 0.03, kTwo, false, 1, true},
    {"streaming-diloco", false, false, 2, 100, 1e9, 0.01, kTwo, false, 1, true},
    {"streaming-diloco", false, false, 2, 100, 4e9, 0.01, kTwo, false, 1, true},
    {"streaming-diloco", false, false, 4, 30, 0.8e6, 0.065, kOurs, false, 1, true, kFaster},
    {"streaming-diloco", false, false, 4, 30, 35e6, 0.09, kFour, false, 1, true},
    {"streaming-diloco", false, false, 4, 30, 100e6, 0.06, kFour, false, 1, true},
    {"streaming-diloco", false, false, 4, 30, 300e6, 0.04, kFour, false, 1, true},
    {"streaming-diloco", false, false, 4, 30, 1e9, 0.01, kFour, false, 1, true},
    {"streaming-diloco", false, false, 4, 100, 0.8e6, 0.145, kOurs, false, 1, true, kFaster},
    {"streaming-diloco", false, false, 4, 100, 35e6, 0.13, kFour, false, 1, true},
    {"streaming-diloco", false, false, 4, 100, 100e6, 0.10, kFour, false, 1, true},
    {"streaming-diloco", false, false, 4, 100, 300e6, 0.07, kFour, false, 1, true},
    {"streaming-diloco", false, false, 4, 100, 1e9, 0.04, kFour, false, 1, true},
};

double apart(double a, double b) { return std::abs(std::log(a / b)); }

/// Steps until a result is taken up, of those that are not late by a round.
int64_t delay_of(const strategy::Policy& policy) {
  return policy.one_round_late() ? 1 : std::max<int64_t>(policy.delay, 1);
}

double distance(const QualityRow& row, const strategy::Policy& policy, double parameters) {
  const auto number = [](int64_t count) { return static_cast<double>(count); };
  return apart(number(row.replicas), number(policy.replicas)) +
         apart(number(row.period), number(policy.period)) +
         apart(number(row.delay), number(delay_of(policy))) + apart(row.parameters, parameters);
}

/// Whether the policy may cost more than the row, whatever its rounds.
bool differs(const QualityRow& row, const strategy::Policy& policy) {
  const strategy::OuterRule& rule = policy.outer;
  const OuterKeys keys = {rule.learning_rate, rule.momentum, rule.clip};
  return row.other_keys || (row.outer && *row.outer != keys) ||
         (policy.codec.kind != codec::CodecKind::kNone && !row.coded);
}

}  // namespace

std::span<const QualityRow> quality_table() { return kRows; }

std::optional<QualityCost> quality_of(const strategy::Policy& policy, double parameters,
                                      bool codecs) {
  std::optional<QualityCost> nearest;
  double least = std::numeric_limits<double>::infinity();
  for (const QualityRow& row : kRows) {
    if (policy.name != row.policy || policy.one_round_late() != row.late ||
        policy.eager != row.eager || codecs != row.codecs)
      continue;
    const double its = distance(row, policy, parameters);
    if (its >= least) continue;
    least = its;
    const bool beyond = policy.replicas > row.replicas || policy.period > row.period ||
                        delay_of(policy) > row.delay || parameters < row.parameters ||
                        differs(row, policy);
    nearest = QualityCost{row, (policy.local_steps() || codecs) && beyond, its};
  }
  return nearest;
}

}  // namespace strait::plan
