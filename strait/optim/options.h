// [optimizer] of the run file.
#pragma once

#include <cstdint>
#include <string>

namespace strait {

struct OptimizerOptions {
  std::string kind = "adamw";     // adamw | sgd
  double betas[2] = {0.9, 0.99};  // sgd: betas[0] is the momentum
  double eps = 1e-8;
  double weight_decay = 0.1;        // decoupled; matrices and embeddings only
  std::string schedule = "cosine";  // constant | linear | cosine | wsd
  double learning_rate = 1e-3;
  double minimum_learning_rate = 1e-4;
  int64_t warmup_steps = 100;
  int64_t decay_steps = 0;   // 0 = train.steps
  bool in_backward = false;  // a unit is updated as soon as its gradient is final
};

}  // namespace strait
