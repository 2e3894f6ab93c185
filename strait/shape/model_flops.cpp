#include "strait/shape/model_flops.h"

namespace strait {

double model_flops(const ModelShape& model, std::span<const int64_t> lengths) {
  double flops = 0;
  for (const int64_t tokens : lengths)
    flops += static_cast<double>(tokens) * model_flops_per_token(model, tokens);
  return flops;
}

}  // namespace strait
