// What multiplies a run's matrices (kernel/product_choice.h).
#pragma once

#include "strait/config/check_chain.h"
#include "strait/config/place.h"
#include "strait/config/precision.h"
#include "strait/config/run.h"

namespace strait {

/// What the run asks for, by `seconds` where it leaves the choice. Automatic where there is none:
/// on a device, in blocks that LibTorch runs, in fp64, and in fp32 without matrix tiles. UserError
/// with file, line and key where this process lacks what is asked for.
inline kernel::ProductChoice choose_products(const Run& run,
                                             const kernel::ProductSeconds& seconds) {
  const Dtype type = dtype_of(run.train.precision);
  if (type != Dtype::kBfloat16 && type != Dtype::kFloat32) return {};
  if (run.runtime.device == "cuda" || is_chain(run)) return {};
  const std::string key = "runtime.products";
  return with_place(run, [&] {
    return kernel::choose_products(
        {kernel::product_named(run.runtime.products, key), run.runtime.deterministic, key, type},
        kernel::own_multipliers(), seconds);
  });
}

/// run.runtime.chosen or, where nobody has chosen, choose_products without measurements.
inline kernel::ProductChoice chosen_products(const Run& run) {
  if (run.runtime.chosen.products != kernel::NarrowProducts::kAutomatic) return run.runtime.chosen;
  return choose_products(run, nullptr);
}

}  // namespace strait
