// Executor of what a choice of settings per layer looks at.
#include "strait/execute/environment.h"
#include "strait/strategy/adapt/kernels.h"
#include "strait/strategy/adapt/policy.h"
#include "strait/strategy/finish/step_values.h"

namespace strait::execute {
namespace {

using runtime::Bound;
using runtime::Instance;

void gather_gradient(device::Arithmetic& arithmetic, const Instance& instance) {
  strategy::AdaptPolicy policy;
  policy.start = instance.integer(strategy::kGatherStart);
  policy.every = instance.integer(strategy::kGatherEvery);
  policy.gather = instance.integer(strategy::kGatherSteps);
  const int64_t step = instance.index(strategy::kGatherStep) + 1;
  if (!policy.gathers(step)) return;
  const Bound& sum = *instance.find_write(strategy::kGathered);
  if (policy.begins(step)) arithmetic.fill_zero(sum.data, sum.bytes);
  const double* results = static_cast<const double*>(instance.read(strategy::kGatherResults));
  if (results[strategy::kFinite] == 0.0) return;
  const Bound& gradient = *instance.find_read(strategy::kGatheredGradient);
  const Dtype dtype = instance.array(sum).dtype;
  arithmetic.decode(codec::CodecSpec(),
                    {static_cast<const uint8_t*>(gradient.data), static_cast<size_t>(sum.bytes)},
                    {sum.data, dtype, sum.bytes / dtype_bytes(dtype)}, true);
}

}  // namespace

void add_adapt_executors(runtime::Executors& executors, device::Arithmetic& arithmetic) {
  executors.add(strategy::kGatherGradient,
                runtime::Execute([&arithmetic](const Instance& instance) {
                  gather_gradient(arithmetic, instance);
                }));
}

}  // namespace strait::execute
