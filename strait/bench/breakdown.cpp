#include "strait/bench/breakdown.h"

#include <algorithm>
#include <map>

#include "strait/program/program.h"

namespace strait::measure {

std::vector<KernelTime> kernel_times(const program::Program& step, const trace::Recorder& recorder,
                                     int64_t steps, const BreakdownRates& rates) {
  std::map<std::string, KernelTime> times;
  std::map<std::string, std::string> kernel_of;  // by the text of the operation
  program::for_each_instance(step, [&](const program::Op& op, const program::Loops&) {
    if (op.kernel == nullptr) return;
    kernel_of[program::print_op(step, op)] = op.kernel->name;
    KernelTime& time = times[op.kernel->name];
    time.kernel = op.kernel->name;
    ++time.count;
    const program::KernelCost cost = program::cost_of(step, op, 0);
    time.bound_seconds += cost.flops / rates.flops_per_second + cost.bytes / rates.bytes_per_second;
  });
  for (const trace::Span& span : recorder.spans()) {
    const auto found = kernel_of.find(recorder.names()[static_cast<size_t>(span.name)]);
    if (found == kernel_of.end()) continue;
    times[found->second].seconds += (span.time.end - span.time.begin) / static_cast<double>(steps);
  }
  std::vector<KernelTime> list;
  for (auto& [name, time] : times) list.push_back(std::move(time));
  std::ranges::stable_sort(list, std::ranges::greater(), &KernelTime::seconds);
  return list;
}

Json breakdown_json(const std::vector<KernelTime>& kernels, double step_seconds) {
  Json rows = Json::array();
  double rest = step_seconds;
  for (const KernelTime& time : kernels) {
    rest -= time.seconds;
    const Json share = time.seconds > 0 ? Json(time.bound_seconds / time.seconds) : Json(nullptr);
    rows.push_back(Json::object({{"kernel", time.kernel},
                                 {"count", time.count},
                                 {"seconds", time.seconds},
                                 {"share", time.seconds / step_seconds},
                                 {"bound_seconds", time.bound_seconds},
                                 {"bound_share", share}}));
  }
  rows.push_back(Json::object({{"kernel", "other"},
                               {"count", Json(nullptr)},
                               {"seconds", rest},
                               {"share", rest / step_seconds},
                               {"bound_seconds", Json(nullptr)},
                               {"bound_share", Json(nullptr)}}));
  return rows;
}

}  // namespace strait::measure
