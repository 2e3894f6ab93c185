#include "strait/config/reserved_keys.h"

#include <utility>

#include "strait/config/key_field.h"

namespace strait {
namespace {

struct Row {
  const char* name;
  Field field;
  const char* about;
};

std::vector<Row> method_rows() {
  constexpr auto step = &ZerothOrderOptions::step;
  constexpr auto zeroth = &Run::zeroth_order;
  constexpr auto lora = &AdapterOptions::lora;
  return {
      {"zeroth_order.sign_ranks", kField<zeroth, &ZerothOrderOptions::sign_ranks>,
       "2: each sign on a rank of its own."},
      {"zeroth_order.write_back_every", kField<zeroth, &ZerothOrderOptions::write_back_every>,
       "Steps between two writes of weights to their tier."},
      {"zeroth_order.step.epsilon", kField<zeroth, step, &ZerothOrderStep::epsilon>,
       "How far weights are moved to both sides."},
      {"zeroth_order.step.directions", kField<zeroth, step, &ZerothOrderStep::directions>,
       "Random directions of a step."},
      {"zeroth_order.step.restore", kField<zeroth, step, &ZerothOrderStep::restore>,
       "How weights come back: buffer or in-place."},
      {"zeroth_order.step.exact", kField<zeroth, step, &ZerothOrderStep::exact>,
       "Weights come back bit for bit."},
      {"adapter.lora.rank", kField<&Run::adapter, lora, &LoraOptions::rank>,
       "Rank of LoRA's factors; 0 = off."},
      {"adapter.lora.alpha", kField<&Run::adapter, lora, &LoraOptions::alpha>,
       "LoRA's scale, over the rank."},
      {"adapter.lora.targets", kField<&Run::adapter, lora, &LoraOptions::targets>,
       "Matrices that have factors."},
  };
}

std::vector<Row> memory_rows() {
  constexpr auto residence = &Run::residence;
  constexpr auto state = &ResidenceOptions::state;
  constexpr auto tiers = &Run::tiers;
  constexpr auto capacity = &TiersOptions::capacity;
  constexpr auto throttle = &TiersOptions::throttle;
  return {
      {"residence.codec", kField<residence, &ResidenceOptions::codec>,
       "Codec of weights at rest below the device."},
      {"residence.share_above", kField<residence, &ResidenceOptions::share_above>,
       "Part of each state that stays on the device."},
      {"residence.delayed_update", kField<residence, &ResidenceOptions::delayed_update>,
       "Updates are taken up a step later."},
      {"residence.state.weights", kField<residence, state, &ResidenceState::weights>,
       "Tier where weights lie between uses: device, host or disk."},
      {"residence.state.gradients", kField<residence, state, &ResidenceState::gradients>,
       "Of gradients."},
      {"residence.state.optimizer", kField<residence, state, &ResidenceState::optimizer>,
       "Of the optimizer's state."},
      {"residence.state.activations", kField<residence, state, &ResidenceState::activations>,
       "Of kept activations."},
      {"tiers.capacity.device_gb", kField<tiers, capacity, &TierCapacity::device_gb>,
       "Of the device, per rank; 0 = what there is."},
      {"tiers.capacity.host_gb", kField<tiers, capacity, &TierCapacity::host_gb>, "Of the host."},
      {"tiers.capacity.disk_gb", kField<tiers, capacity, &TierCapacity::disk_gb>, "Of the disk."},
      {"tiers.capacity.disk_path", kField<tiers, capacity, &TierCapacity::disk_path>,
       "Folder on that disk."},
      {"tiers.throttle.up_gb_per_second", kField<tiers, throttle, &TierThrottle::up_gb_per_second>,
       "Limit of transfers to the device; 0 = none."},
      {"tiers.throttle.down_gb_per_second",
       kField<tiers, throttle, &TierThrottle::down_gb_per_second>, "From the device."},
      {"tiers.throttle.read_gb_per_second",
       kField<tiers, throttle, &TierThrottle::read_gb_per_second>, "From the disk."},
      {"tiers.throttle.write_gb_per_second",
       kField<tiers, throttle, &TierThrottle::write_gb_per_second>, "To the disk."},
  };
}

std::vector<Row> projection_rows() {
  constexpr auto projection = &Run::projection;
  constexpr auto matrix = &ProjectionOptions::matrix;
  constexpr auto refresh = &ProjectionOptions::refresh;
  return {
      {"projection.matrix.size", kField<projection, matrix, &ProjectionMatrix::size>,
       "Rows of LSP-Offload's projections; 0 = off."},
      {"projection.matrix.nonzeros", kField<projection, matrix, &ProjectionMatrix::nonzeros>,
       "Numbers in each of their rows."},
      {"projection.matrix.schedule", kField<projection, matrix, &ProjectionMatrix::schedule>,
       "Order of transfers and updates: zero, delayed or layers."},
      {"projection.refresh.check_every_steps",
       kField<projection, refresh, &ProjectionRefresh::check_every_steps>,
       "Steps between looks at the bias."},
      {"projection.refresh.bias", kField<projection, refresh, &ProjectionRefresh::bias>,
       "Bias above which projections are learned anew."},
      {"projection.refresh.samples", kField<projection, refresh, &ProjectionRefresh::samples>,
       "Gradients that they are learned from."},
      {"projection.refresh.iterations", kField<projection, refresh, &ProjectionRefresh::iterations>,
       "Steps of that."},
      {"projection.refresh.learning_rate",
       kField<projection, refresh, &ProjectionRefresh::learning_rate>, "Its learning rate."},
  };
}

}  // namespace

std::vector<Key> reserved_keys() {
  std::vector<Key> keys;
  for (const auto part : {method_rows, memory_rows, projection_rows})
    for (const Row& row : part()) {
      Rule rule;
      rule.only_default = true;
      keys.push_back({row.name, row.field, std::move(rule), row.about});
    }
  return keys;
}

}  // namespace strait
