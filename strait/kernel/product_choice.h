// Which products multiply a run's bf16 matrices: what is asked for, what this process has, and what
// is measured.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "strait/kernel/products.h"

namespace strait::kernel {

/// What a process can multiply bf16 with.
struct Multipliers {
  bool pairs = false;  // AVX512_BF16
  TileAccess tiles = TileAccess::kMissing;
  bool onednn = false;                              // built in, for this processor
  NarrowProducts usual = NarrowProducts::kWidened;  // narrow_products()
};
/// Of this process. Asks the system for matrix tiles (tile_access).
Multipliers own_multipliers();
bool can_multiply(const Multipliers& has, NarrowProducts products);

/// "widened", "paired", "tiles", "onednn"; kAutomatic is "auto".
const char* product_name(NarrowProducts products);
/// The inverse; UserError naming `key` and the nearest name.
NarrowProducts product_named(const std::string& name, const std::string& key);
/// "auto" and what may be asked for by name.
const std::vector<std::string>& product_names();

/// What a run asks for.
struct ProductRequest {
  NarrowProducts products = NarrowProducts::kAutomatic;
  bool deterministic = false;            // the choice must not depend on measurements
  std::string key = "runtime.products";  // named where it is refused
};

/// What multiplies, and why. kAutomatic: nobody has chosen.
struct ProductChoice {
  NarrowProducts products = NarrowProducts::kAutomatic;
  std::string reason;  // "asked for", "1.9 times widened, 1.1 times onednn", ...
};

/// Seconds that the same products take by a way that the process has.
using ProductSeconds = std::function<double(NarrowProducts)>;

/// What is asked for. UserError naming what `has` has, and the nearest of it, where that is
/// missing; tiles that the system denies are replaced by the usual. Nothing asked for: tiles, else
/// the usual; without `deterministic`, what is at least kClearlyFaster times as fast by `seconds`
/// (may be null), so that noise does not decide between equals.
ProductChoice choose_products(const ProductRequest& request, const Multipliers& has,
                              const ProductSeconds& seconds);
inline constexpr double kClearlyFaster = 1.1;

/// Of a step's three kinds of products (forward, input gradient, weight gradient), small, on one
/// core: the best of several, in processor time, which a busy machine does not lengthen. A few
/// milliseconds for each way; measured once per process. Thread-safe.
double measured_product_seconds(NarrowProducts products);

}  // namespace strait::kernel
