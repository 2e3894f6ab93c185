// Where the time of a step goes, kernel by kernel, against what the machine could do.
#pragma once

#include <string>
#include <vector>

#include "strait/base/json.h"
#include "strait/program/program.h"
#include "strait/trace/spans.h"

namespace strait::measure {

/// What bounds kernels: products, and bytes read plus written, of all threads of the rank.
struct BreakdownRates {
  double flops_per_second = 0, bytes_per_second = 0;
};

/// One kernel of a step, all its executions together.
struct KernelTime {
  std::string kernel;
  int64_t count = 0;         // executions in a step
  double seconds = 0;        // mean over steps
  double bound_seconds = 0;  // operations and operands at the rates, one after the other
};

/// Kernels of rank 0, longest first. `recorder` holds the spans of `steps` executions of `step` and
/// nothing else.
std::vector<KernelTime> kernel_times(const program::Program& step, const trace::Recorder& recorder,
                                     int64_t steps, const BreakdownRates& rates);

/// [{kernel, count, seconds, share, bound_seconds, bound_share}]; the last row, "other", is what
/// `step_seconds` has besides, such as the interpreter.
Json breakdown_json(const std::vector<KernelTime>& kernels, double step_seconds);

}  // namespace strait::measure
