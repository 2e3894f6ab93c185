// One training step against its own matrix products and against the same step in eager PyTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strait/bench/bench.h"
#include "strait/shape/shape.h"

namespace strait::measure {

struct StepCase {
  std::string model = "gpt2-124m";
  int64_t micro_batch_size = 4;
  int64_t context = 64;
  std::string precision = "fp32";  // fp32 | fp64 | bf16
  int64_t threads = 1;
  int64_t vocabulary = 50257;
  kernel::NarrowProducts products = kernel::NarrowProducts::kAutomatic;  // of its precision
};

/// What the trainer lends to the benchmark.
struct StepSubject {
  std::function<std::string()>
      verify;                    // "" or what is wrong (the loss of a step, against a reference)
  std::function<double()> step;  // one optimizer step; its seconds
};

/// The linear layers of one step of a transformer: forward, input gradient and weight gradient of
/// each, head included, attention's own products not. Shapes that occur in every block carry their
/// count.
std::vector<GemmShape> step_gemms(const ModelShape& model, int64_t sequences, int64_t tokens);

/// The row of `bench step`. Bound "own-gemms": step_gemms, each timed once and taken `count` times.
/// The caller has set the OpenMP limit of its thread as the step wants it; the bound uses
/// step.threads.
BenchRow bench_step(const StepCase& step, const ModelShape& model, const StepSubject& subject,
                    const std::vector<Contender>& peers, const TimingOptions& options = {});

struct TorchPeerOptions {
  std::string python = "/usr/bin/python3";  // Debian's python3-torch is there
  std::string script = {};                  // that of the family: bench/peers/gpt2_torch.py
  double clip_norm = 0.0;                   // 0 = off
  bool compiled = false;                    // torch.compile, which PyTorch has from 2.0
  double deadline_seconds = 300.0;          // for the start and for every step
};

/// The step in eager PyTorch as a contender: a child process that waits between runs; bf16 is
/// autocast there, with fp32 weights. When it cannot be had, `missing` says why and nothing is
/// thrown. The child ends with the last copy of the contender.
Contender torch_step_peer(const StepCase& step, const ModelShape& model,
                          const TorchPeerOptions& options);

}  // namespace strait::measure
