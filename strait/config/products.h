// What multiplies a run's bf16 matrices (kernel/product_choice.h).
#pragma once

#include "strait/config/place.h"
#include "strait/config/run.h"

namespace strait {

/// What the run asks for, by `seconds` where it leaves the choice. Automatic for runs that multiply
/// nothing in bf16 on a processor. UserError with file, line and key where this process lacks what
/// is asked for.
inline kernel::ProductChoice choose_products(const Run& run,
                                             const kernel::ProductSeconds& seconds) {
  if (run.train.precision != "bf16" || run.runtime.device == "cuda") return {};
  const std::string key = "runtime.products";
  return with_place(run, [&] {
    return kernel::choose_products(
        {kernel::product_named(run.runtime.products, key), run.runtime.deterministic, key},
        kernel::own_multipliers(), seconds);
  });
}

/// run.runtime.chosen or, where nobody has chosen, choose_products without measurements.
inline kernel::ProductChoice chosen_products(const Run& run) {
  if (run.runtime.chosen.products != kernel::NarrowProducts::kAutomatic) return run.runtime.chosen;
  return choose_products(run, nullptr);
}

}  // namespace strait
