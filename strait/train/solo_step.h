// One rank that runs the same step again and again on synthetic tokens: what benchmarks time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strait/comm/threads/thread_world.h"
#include "strait/execute/environment.h"
#include "strait/runtime/runner.h"
#include "strait/runtime/state.h"
#include "strait/strategy/compose/design.h"

namespace strait::train {

/// A world of one with a whole model. The batch never changes, so its loss falls from step to step.
/// Call all methods from one thread.
class SoloStep {
 public:
  /// `run` gives model, batch, context, precision and optimizer; random tokens from its seed.
  /// `device`: where the values are, null = plain memory. `recorder` gets the spans of steps while
  /// it records; may be null. Both outlive this.
  SoloStep(const Run& run, int64_t vocabulary, tensor::Device* device = nullptr,
           trace::Recorder* recorder = nullptr);
  ~SoloStep();

  struct Result {
    double seconds = 0;
    double loss = 0;  // before the update
    int64_t ops = 0;
  };
  Result step();
  /// Loss of the batch with the present weights, by the evaluation program.
  double loss();
  const strategy::Design& design() const { return design_; }
  const memory::Pool& pool() const { return pool_; }

 private:
  strategy::Design design_;
  std::unique_ptr<comm::ThreadWorlds> worlds_;
  memory::Pool pool_;
  runtime::State state_;
  model::Model model_;
  std::unique_ptr<device::Arithmetic> arithmetic_;
  execute::Environment environment_;
  runtime::Executors executors_;
  runtime::Site site_;
  runtime::Runner runner_;
  int64_t steps_ = 0;
};

}  // namespace strait::train
