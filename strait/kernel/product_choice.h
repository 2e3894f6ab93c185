// Which products multiply a run's matrices of bf16 or fp32: what is asked for, what this process
// has, and what is measured.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/kernel/products.h"

namespace strait::kernel {

/// What a process can multiply with.
struct Multipliers {
  bool pairs = false;  // AVX512_BF16
  TileAccess tiles = TileAccess::kMissing;
  bool onednn = false;                              // built in, for this processor
  NarrowProducts usual = NarrowProducts::kWidened;  // narrow_products()
};
/// Of this process. Asks the system for matrix tiles (tile_access).
Multipliers own_multipliers();
bool can_multiply(const Multipliers& has, NarrowProducts products);

/// Whether that is a way to multiply `type`: of fp32 kWidened and kSplit, of bf16 all others that
/// have names, of fp64 none. kAutomatic suits all.
bool suits(NarrowProducts products, Dtype type);

/// "widened", "paired", "tiles", "onednn", "split"; kAutomatic is "auto".
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
  Dtype type = Dtype::kBfloat16;         // or kFloat32: what is multiplied
};

/// What multiplies, and why. kAutomatic: nobody has chosen.
struct ProductChoice {
  NarrowProducts products = NarrowProducts::kAutomatic;
  std::string reason;  // "asked for", "1.9 times widened, 1.1 times onednn", ...
};

/// Seconds that the same products take by a way that the process has.
using ProductSeconds = std::function<double(NarrowProducts)>;

/// What is asked for. UserError naming what `has` has for the type, and the nearest of it, where
/// that is missing; tiles that the system denies are replaced by the usual. Nothing asked for: of
/// bf16 tiles, unmeasured; else the usual or, without `deterministic`, what is at least
/// kClearlyFaster times as fast by `seconds` (may be null), so that noise does not decide, and runs
/// that go on end as whole ones do. Of fp32 kAutomatic, vectors: kSplit was not faster where it was
/// measured.
ProductChoice choose_products(const ProductRequest& request, const Multipliers& has,
                              const ProductSeconds& seconds);
inline constexpr double kClearlyFaster = 1.2;

/// Of a step's three kinds of products of bf16 (forward, input gradient, weight gradient), small,
/// on one core: the best of several, in processor time, which a busy machine does not lengthen. A
/// few milliseconds for each way; measured once per process. Thread-safe.
ProductSeconds measured_product_seconds();

}  // namespace strait::kernel
