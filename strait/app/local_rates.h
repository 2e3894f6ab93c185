// The rates of the machine that the program runs on, for runs whose cluster is localhost.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "strait/config/run.h"

namespace strait::app {

/// Where the user's programs keep what they can make again: $XDG_CACHE_HOME/strait or
/// $HOME/.cache/strait; "" when neither is set.
std::string cache_folder();

/// Fills run.runtime.chosen with what multiplies bf16: as asked for, or measured. UserError where
/// this processor lacks what is asked for.
void use_local_products(Run& run);

/// The same for ranks that are processes: by what `on_lead` says of rank 0's, where a rank has it.
void use_agreed_products(
    Run& run, const std::function<std::string(const std::function<std::string()>&)>& on_lead);

/// Fills run.cluster.measured, measured with `cores` cores at work or remembered (machine_rates.h),
/// where the run would otherwise take the rates of the preset localhost and computes on a
/// processor; and run.runtime.chosen with them.
void use_local_rates(Run& run, int64_t cores);

/// What processes have of their machine's cores.
struct ProcessCores {
  int64_t per_rank = 1;
  int64_t ranks_per_machine = 1, cores_per_machine = 1;
};

/// The same for ranks that are processes: all measure at once where every one has a core, and go by
/// what `on_lead` says of rank 0's.
void use_agreed_rates(
    Run& run, const ProcessCores& cores,
    const std::function<std::string(const std::function<std::string()>&)>& on_lead);

}  // namespace strait::app
