#include "strait/execute/model_settings.h"

#include "strait/config/products.h"

namespace strait::execute {

model::Settings model_settings(const strategy::Design& design) {
  model::Settings settings;
  settings.dtype = design.dtype;
  settings.threads = static_cast<int>(design.batch.threads_per_rank);
  settings.seed = design.run.seed;
  settings.products = chosen_products(design.run).products;
  const int64_t sequences = design.batch.global_batch_size / design.policy.replicas;
  settings.loss_scale = 1.0 / static_cast<double>(sequences * design.batch.sequence_tokens);
  return settings;
}

}  // namespace strait::execute
