#include "strait/app/local_rates.h"

#include <algorithm>
#include <cstdlib>

#include "strait/base/process_memory.h"
#include "strait/config/check_chain.h"
#include "strait/config/products.h"
#include "strait/probe/machine_rates.h"
#include "strait/threads/core_quota.h"
#include "strait/threads/cores.h"

namespace strait::app {
namespace {

std::string folder_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

bool takes_local_rates(const Run& run) {
  const bool local = !run.cluster.levels.empty() || run.cluster.preset == "localhost";
  return local && run.cluster.file.empty() && run.runtime.device != "cuda";
}

Dtype measured_type(const std::string& precision) {
  if (precision == "bf16") return Dtype::kBfloat16;
  return precision == "fp64" ? Dtype::kFloat64 : Dtype::kFloat32;
}

}  // namespace

std::string cache_folder() {
  const std::string given = folder_of("XDG_CACHE_HOME");
  if (!given.empty()) return given + "/strait";
  const std::string home = folder_of("HOME");
  return home.empty() ? "" : home + "/.cache/strait";
}

void use_local_products(Run& run) {
  run.runtime.chosen = choose_products(run, kernel::measured_product_seconds());
}

void use_agreed_products(
    Run& run, const std::function<std::string(const std::function<std::string()>&)>& on_lead) {
  use_local_products(run);
  kernel::ProductChoice& own = run.runtime.chosen;
  const std::string text = on_lead([&] { return kernel::product_name(own.products); });
  const kernel::NarrowProducts agreed = kernel::product_named(text, "runtime.products");
  if (agreed != own.products && kernel::can_multiply(kernel::own_multipliers(), agreed))
    own = {agreed, "as rank 0"};
}

void use_local_rates(Run& run, int64_t cores) {
  if (!takes_local_rates(run)) return;
  if (run.runtime.chosen.products == kernel::NarrowProducts::kAutomatic) use_local_products(run);
  // In processor time, so of whole cores; a quota may allow less than one.
  const double share = std::min(1.0, core_quota().cores / static_cast<double>(cores));
  run.cluster.measured =
      measure::scaled(measure::remembered_rates(cache_folder(), measured_type(run.train.precision),
                                                cores, run.runtime.chosen.products, is_chain(run)),
                      share);
  run.cluster.measured->cores_per_machine = available_cores();
  run.cluster.measured->memory_bytes_per_machine = usable_memory_bytes();
}

void use_agreed_rates(
    Run& run, const ProcessCores& cores,
    const std::function<std::string(const std::function<std::string()>&)>& on_lead) {
  if (!takes_local_rates(run)) return;
  // What takes turns cannot be timed at once: there rank 0 measures, and the others sleep.
  const bool crowded = cores.ranks_per_machine > cores.cores_per_machine;
  if (!crowded) use_local_rates(run, cores.per_rank);
  const std::string text = on_lead([&] {
    if (crowded) use_local_rates(run, available_cores());
    Json rates = measure::rates_json(*run.cluster.measured);
    rates["ranks_per_machine"] = cores.ranks_per_machine;
    rates["cores_per_machine"] = cores.cores_per_machine;
    rates["memory_bytes_per_machine"] = usable_memory_bytes();
    return rates.dump();
  });
  const Json rates = Json::parse(text, "the rates of rank 0");
  run.cluster.measured = measure::rates_from_json(rates);
  run.cluster.measured->ranks_per_machine = rates.at("ranks_per_machine").as_integer();
  run.cluster.measured->cores_per_machine = rates.at("cores_per_machine").as_integer();
  run.cluster.measured->memory_bytes_per_machine =
      rates.at("memory_bytes_per_machine").as_integer();
}

}  // namespace strait::app
