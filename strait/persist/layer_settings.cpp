#include "strait/persist/layer_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "strait/base/errors.h"
#include "strait/comm/bookkeeping.h"
#include "strait/strategy/adapt/adapt.h"
#include "strait/tensor/device.h"

namespace strait::persist {
namespace {

[[noreturn]] void refuse(const std::string& source, const std::string& what) {
  ErrorPlace place;
  place.file = source;
  throw UserError(fmt::format("{}: settings of layers: {}", source, what), place);
}

/// The sums of a unit's gradients, in host memory.
class GatheredUnits {
 public:
  GatheredUnits(const program::Program& step, runtime::State& state) : step_(step), state_(state) {}

  codec::ConstValues of(const strategy::AdaptedLayer& layer) {
    if (layer.unit != unit_) read(layer.unit);
    return {values_.data() + layer.first * dtype_bytes(dtype_), dtype_, layer.uniform.elements};
  }

 private:
  void read(int64_t unit) {
    for (const program::ValueArray& array : step_.arrays) {
      const int64_t index = unit - array.address.unit;
      if (array.address.state != strategy::kGatheredState || index < 0 || index >= array.count)
        continue;
      const runtime::ResidentArray& held = state_.array(array.name);
      values_.resize(static_cast<size_t>(held.bytes));
      tensor::copy_bytes(state_.device_of(held), held.buffers[static_cast<size_t>(index)],
                         values_.data(), held.bytes);
      dtype_ = array.dtype;
      unit_ = unit;
      return;
    }
    throw InternalError("layer settings: a unit whose gradients nobody gathers");
  }

  const program::Program& step_;
  runtime::State& state_;
  int64_t unit_ = -1;
  Dtype dtype_ = Dtype::kFloat32;
  std::vector<std::byte> values_;
};

}  // namespace

Json to_json(const ChosenSettings& chosen, const std::vector<strategy::AdaptedLayer>& layers) {
  Json settings = Json::array();
  for (const std::string& name : strategy::setting_names(layers, chosen.choice.settings))
    settings.push_back(name);
  return Json::object({{"step", chosen.step},
                       {"settings", std::move(settings)},
                       {"bytes_per_step", chosen.choice.bytes},
                       {"uniform_bytes_per_step", chosen.choice.uniform_bytes},
                       {"error", chosen.choice.error},
                       {"allowed_error", chosen.choice.allowed_error}});
}

ChosenSettings chosen_from_json(const Json& json, const std::vector<strategy::AdaptedLayer>& layers,
                                const std::string& source) {
  ChosenSettings chosen;
  chosen.step = json.at("step").as_integer();
  chosen.choice.bytes = json.at("bytes_per_step").as_integer();
  chosen.choice.uniform_bytes = json.at("uniform_bytes_per_step").as_integer();
  chosen.choice.error = json.at("error").as_number();
  chosen.choice.allowed_error = json.at("allowed_error").as_number();
  const auto& settings = json.at("settings").as_array();
  if (settings.size() != layers.size())
    refuse(source, fmt::format("there are {}, and the model has {} compressed layers",
                               settings.size(), layers.size()));
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::vector<codec::CodecSpec> all = strategy::settings_of(layers[l]);
    const auto found = std::ranges::find(all, settings[l].as_string(), codec::print_codec);
    if (found == all.end())
      refuse(source,
             fmt::format("{} is none of those of {}", settings[l].as_string(), layers[l].name));
    chosen.choice.settings.push_back(found - all.begin());
  }
  return chosen;
}

void agree_on_settings(comm::World& world, strategy::LayerSettings& settings, int64_t step,
                       double deadline_seconds,
                       const std::function<void(strategy::LayerSettings&)>& received) {
  // All but rank 0 add zeros.
  if (world.rank() != 0) std::ranges::fill(settings, 0);
  comm::sum_over_ranks(world, settings, {"take up the settings of layers", step, deadline_seconds});
  if (received) received(settings);
  std::vector<int64_t> hashes(static_cast<size_t>(world.size()), 0);
  hashes[static_cast<size_t>(world.rank())] =
      static_cast<int64_t>(strategy::settings_hash(settings));
  comm::sum_over_ranks(world, hashes, {"compare the settings of layers", step, deadline_seconds});
  for (size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    ErrorPlace place;
    place.rank = static_cast<int64_t>(rank);
    place.step = step;
    throw InternalError(
        fmt::format("rank {} holds other settings of layers than rank 0 has chosen: hash {:016x}, "
                    "not {:016x}",
                    rank, static_cast<uint64_t>(hashes[rank]), static_cast<uint64_t>(hashes[0])),
        place);
  }
}

void LayerSettings::resume(const ChosenSettings& chosen) {
  chosen_ = chosen;
  take_up();
}

void LayerSettings::take_up() { runner_.replace(programs_.with(chosen_->choice.settings)); }

strategy::SettingsChoice LayerSettings::choose() const {
  const strategy::LayerSettings uniform = strategy::uniform_settings(programs_.layers());
  const program::Program& step =
      programs_.with(uniform).program(strategy::kSteady, site_.state.rank());
  GatheredUnits gathered(step, site_.state);
  return strategy::choose_settings(
      programs_.layers(), programs_.parts(), policy_.alpha,
      [&](const strategy::AdaptedLayer& layer) { return gathered.of(layer); });
}

const ChosenSettings* LayerSettings::choose_if_due(
    int64_t step, const std::function<void(strategy::LayerSettings&)>& received) {
  if (!policy_.chooses_after(step)) return nullptr;
  site_.state.drain();
  ChosenSettings next{step, {}};
  if (site_.state.rank() == 0) next.choice = choose();
  next.choice.settings.resize(programs_.layers().size());
  agree_on_settings(site_.world, next.choice.settings, step, site_.deadline_seconds, received);
  chosen_ = std::move(next);
  take_up();
  return &*chosen_;
}

}  // namespace strait::persist
