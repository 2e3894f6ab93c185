#include "strait/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace strait::report {
namespace {

double quantile(const std::vector<double>& sorted, double share) {
  const double position = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  return sorted[below] + weight * (sorted[above] - sorted[below]);
}

}  // namespace

Statistics statistics_of(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {nan, nan, nan, nan, nan, 0};
  }
  std::sort(values.begin(), values.end());
  return {quantile(values, 0.5), values.front(),        values.back(),
          quantile(values, 0.1), quantile(values, 0.9), static_cast<int64_t>(values.size())};
}

Json to_json(const Statistics& statistics) {
  return Json::object({{"median", statistics.median},
                       {"min", statistics.min},
                       {"max", statistics.max},
                       {"p10", statistics.p10},
                       {"p90", statistics.p90},
                       {"count", statistics.count}});
}

double final_loss(const std::vector<double>& losses) {
  std::vector<double> last(losses.end() - std::min(kLossSteps, std::ssize(losses)), losses.end());
  std::erase_if(last, [](double loss) { return std::isnan(loss); });
  return std::accumulate(last.begin(), last.end(), 0.0) / static_cast<double>(last.size());
}

void Rate::add(double amount, double seconds) {
  if (!std::isfinite(amount) || !std::isfinite(seconds)) return;
  amount_ += amount;
  seconds_ += seconds;
}

double Rate::value() const { return seconds_ > 0 ? amount_ / seconds_ : std::nan(""); }

}  // namespace strait::report
