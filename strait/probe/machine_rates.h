// Rates of this machine, measured in a fraction of a second at the start of a program and
// remembered.
#pragma once

#include <cstdint>
#include <string>

#include "strait/base/dtype.h"
#include "strait/base/json.h"
#include "strait/kernel/products.h"
#include "strait/topology/options.h"

namespace strait::measure {

/// One core's rates in `dtype` (fp32, fp64 or bf16) with `cores` threads at work: the best of
/// several products, of attention and of several copies, and, where `dtype` is not fp64, forward
/// and backward of a whole block, without its attention; bf16 by `products`; with `library` those
/// of LibTorch too, which is loaded for it.
/// Seconds are processor time, which a busy machine does not lengthen. Results are checked
/// (InternalError). Blocks for at most 0.3 s on an idle machine.
MeasuredRates measure_rates(Dtype dtype, int64_t cores,
                            kernel::NarrowProducts products = kernel::NarrowProducts::kAutomatic,
                            bool library = false);

/// As measure_rates, from a file in `cache_folder` where this program has measured this machine
/// before; "" = no such folder. Any number of processes may call at once: files are replaced whole.
/// A file that cannot be read is measured again, one that cannot be written is done without.
MeasuredRates remembered_rates(const std::string& cache_folder, Dtype dtype, int64_t cores,
                               kernel::NarrowProducts products = kernel::NarrowProducts::kAutomatic,
                               bool library = false);

/// The file that remembered_rates reads: named by type, cores, products, processor, host
/// and commit.
std::string rates_file(const std::string& cache_folder, Dtype dtype, int64_t cores,
                       kernel::NarrowProducts products = kernel::NarrowProducts::kAutomatic);

/// All of them times `share`: of cores that are not the process's alone.
MeasuredRates scaled(MeasuredRates rates, double share);

/// The members of that file, and back (UserError).
Json rates_json(const MeasuredRates& rates);
MeasuredRates rates_from_json(const Json& json);

}  // namespace strait::measure
