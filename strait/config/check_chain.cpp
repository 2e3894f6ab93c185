#include "strait/config/check_chain.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/config/keys.h"
#include "strait/config/place.h"
#include "strait/data/synthetic.h"
#include "strait/shape/modules.h"
#include "strait/shape/unet.h"

namespace strait {
namespace {

bool is_unet(const Run& run) { return run.model.family == kUnetFamily; }

/// Where the sizes of the run's chain are written.
std::string source_of_sizes(const Run& run) {
  return is_unet(run) ? "model.unet" : fmt::format("{}/{}", run.model.path, kModulesManifest);
}

void check_size(const Run& run, const Key& key, const Run& filled) {
  if (same_value(key, run, filled)) return;
  refuse_key(run, key.name,
             fmt::format("{} = {} cannot take effect: model.family = \"{}\" has the sizes of {}; "
                         "the nearest valid value is {}",
                         key.name, value_text(key, run), run.model.family, source_of_sizes(run),
                         value_text(key, filled)));
}

void check_effects(const Run& run) {
  const char* const what = is_unet(run) ? "a U-Net runs" : "modules run";
  if (run.runtime.device == "cuda")
    refuse_key(run, "runtime.device",
               fmt::format("runtime.device = \"cuda\" cannot take effect: {} on the processor; the "
                           "nearest valid value is \"cpu\"",
                           what));
  if (run.train.recompute != "block")
    refuse_key(
        run, "train.recompute",
        fmt::format("train.recompute = {} cannot take effect: {} from inputs alone, once more in "
                    "the backward pass; the nearest valid value is \"block\"",
                    toml_string(run.train.recompute), what));
}

}  // namespace

bool is_chain(const Run& run) { return run.model.family == kModulesFamily || is_unet(run); }

int64_t middle_blocks(const Run& run) {
  return is_chain(run) ? run.model.shape.layers - 2 : run.model.shape.layers;
}

const char* middle_blocks_name(const Run& run) {
  return is_chain(run) ? "blocks between the first and the last" : "transformer blocks";
}

void check_chain(const Run& run, Problems& problems) {
  if (!run.model.modules) {
    // The chain could not be made, which is a problem already.
    if (problems.found().empty())
      problems.attempt([&] {
        with_place(run, [&] {
          if (is_unet(run)) return check_unet(run.model.unet);
          read_modules(run.model.path);
        });
      });
    return;
  }
  Run filled;
  filled.model.preset = run.model.preset;
  filled.model.shape = modules_options(*run.model.modules);
  for (const Key& key : run_keys())
    if (key.name.starts_with("model.shape.") || key.name.starts_with("model.rope."))
      problems.attempt([&] { check_size(run, key, filled); });
  if (!is_unet(run) && run.is_set("model.preset"))
    problems.attempt([&] { check_size(run, *find_key("model.preset"), Run()); });
  problems.attempt([&] { check_effects(run); });
}

void check_unet_effect(const Run& run) {
  static const Run defaults;
  for (const Key& key : run_keys())
    if (key.name.starts_with("model.unet.") && run.is_set(key.name) &&
        !same_value(key, run, defaults))
      refuse_key(
          run, key.name,
          fmt::format("{} = {} cannot take effect with model.family = \"{}\"; the nearest "
                      "valid value is {}, or model.family = \"unet\"",
                      key.name, value_text(key, run), run.model.family, value_text(key, defaults)));
}

void check_images(const Run& run) {
  if (run.data.path.empty()) return;
  if (!is_unet(run)) {
    if (has_images(run.data) && run.model.family != kModulesFamily)
      refuse_key(run, "data.path",
                 fmt::format("data.path = {} makes images, and model.family = \"{}\" learns to "
                             "continue a text; the nearest valid choice is model.family = "
                             "\"unet\", or a text",
                             toml_string(run.data.path), run.model.family));
    return;
  }
  const UnetOptions& unet = run.model.unet;
  const std::string nearest = fmt::format("{}/size={}/colors={}", kImages, unet.image, unet.colors);
  if (!has_images(run.data))
    refuse_key(run, "data.path",
               fmt::format("data.path = {} has no images, from which model.family = \"unet\" "
                           "learns; the nearest valid value is \"{}\"",
                           toml_string(run.data.path), nearest));
  const SyntheticImages images = with_place(run, [&] { return parse_images(run.data.path); });
  if (images.size != unet.image || images.colors != unet.colors)
    refuse_key(run, "data.path",
               fmt::format("data.path = {} makes images of {} x {} pixels with {} colors, and "
                           "model.unet has {} x {} with {}; the nearest valid value is \"{}\"",
                           toml_string(run.data.path), images.size, images.size, images.colors,
                           unet.image, unet.image, unet.colors, nearest));
}

}  // namespace strait
