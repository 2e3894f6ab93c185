#include "strait/cli/policy_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/cli/plan_table.h"
#include "strait/cli/plan_text.h"
#include "strait/plan/codecs.h"
#include "strait/plan/policies.h"

namespace strait::cli {
namespace {

constexpr const char* kHeading =
    "  #  policy            replicas  period  fragments  delay  codec     utilization       step   "
    "sent/step  in flight  loss, nats  known at";

/// "H 100, 2 replicas, 35M", with "delay 14" where results are later than by a step.
std::string known_at(const plan::QualityCost& cost) {
  const plan::QualityRow& row = cost.known;
  return fmt::format("H {}{}, {} replicas, {:.3g}M parameters{}; {}", row.period,
                     row.delay > 1 ? fmt::format(", delay {}", row.delay) : "", row.replicas,
                     row.parameters / 1e6, cost.extrapolated ? ", so at least" : "", row.source);
}

std::string quality_text(const plan::Candidate& candidate) {
  const strategy::Design& design = candidate.design;
  if (!design.policy.local_steps() && !plan::compresses(design))
    return fmt::format("{:>10}", "baseline");
  const std::optional<plan::QualityCost>& cost = candidate.policy->quality;
  if (!cost) return fmt::format("{:>10}  nowhere", "unknown");
  return fmt::format("{:>+10.3f}  {}", cost->known.gap_nats, known_at(*cost));
}

std::string name_of(const strategy::Policy& policy) {
  return policy.eager ? policy.name + ", eager" : policy.name;
}

/// That of what replicas exchange; of every step that of its gradients.
std::string codec_of(const strategy::Design& design) {
  if (design.policy.local_steps()) return codec::print_codec(design.policy.codec);
  if (design.run.compression.codec != "none") return design.run.compression.codec;
  const auto& hops = design.placement.codecs.gradients;
  return hops.empty() ? "none" : codec::print_codec(hops.back());
}

std::string line_of(const plan::Candidate& candidate, int64_t position) {
  const strategy::Policy& policy = candidate.design.policy;
  const bool rounds = policy.local_steps();
  const auto of_rounds = [&](int64_t number) {
    return rounds ? std::to_string(number) : std::string("-");
  };
  return fmt::format(
      "{:>3}  {:<16}  {:>8}  {:>6}  {:>9}  {:>5}  {:<8} {:>10.1f} % {:>10}  {:>10} {:>10}  {}",
      position, name_of(policy), of_rounds(policy.replicas), of_rounds(policy.period),
      of_rounds(policy.fragments), of_rounds(policy.delay), codec_of(candidate.design),
      100 * candidate.policy->utilization, seconds_text(candidate.simulated.seconds),
      bytes_text(static_cast<double>(candidate.simulated.traffic.bytes())),
      bytes_text(static_cast<double>(candidate.policy->peak_bytes_in_flight)),
      quality_text(candidate));
}

}  // namespace

std::vector<std::string> policy_table(const plan::SearchResult& result, int64_t keep) {
  std::vector<std::string> left_out;
  for (const plan::Rejection& rejection : result.rejected)
    left_out.push_back(rejection_line(rejection));
  if (result.candidates.empty()) return left_out;
  std::vector<std::string> lines = {kHeading};
  int64_t position = 0;
  for (const plan::Candidate& candidate : result.candidates)
    if (++position <= keep) lines.push_back(line_of(candidate, position));
  const strategy::Design& first = result.candidates.front().design;
  lines.push_back(
      fmt::format("{} of {} keep utilization at {} or above; the first costs least in loss",
                  std::ranges::count_if(result.candidates, plan::reaches_target),
                  result.candidates.size(), first.run.plan.utilization));
  lines.push_back("figures: " + figures_text(first.cluster));
  lines.insert(lines.end(), left_out.begin(), left_out.end());
  return lines;
}

}  // namespace strait::cli
