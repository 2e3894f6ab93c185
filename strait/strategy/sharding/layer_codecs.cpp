#include "strait/strategy/sharding/layer_codecs.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/compression/low_rank.h"
#include "strait/config/check_mesh.h"
#include "strait/config/keys.h"

namespace strait::strategy {
namespace {

constexpr const char* kKey = "compression.codec";

[[noreturn]] void refuse(const Run& run, const std::string& why, const std::string& nearest) {
  refuse_key(run, kKey,
             fmt::format("{} = \"{}\" cannot take effect: {}; the nearest valid choice is {}", kKey,
                         run.compression.codec, why, nearest));
}

void check_codec(const Run& run, const codec::CodecSpec& spec) {
  if (spec.block == 0 && !codec::is_of_layers(spec))
    refuse(run, "it has no blocks that a layer's border would cut",
           fmt::format("placement.codecs.gradients = [\"{}\"]",
                       beyond_range(run, spec) ? "bf16" : codec::print_codec(spec)));
}

/// Factors of low rank are only worth it where they are smaller.
bool fits(const codec::CodecSpec& spec, const ParameterShape& parameter) {
  const int64_t rows = parameter.dims[0];
  return !codec::is_low_rank(spec) ||
         compression::has_low_rank(rows, parameter.elements() / rows, spec.rank);
}

/// The nearest that a round's difference can be sent in.
std::string outer_codec(const std::string& text) {
  codec::CodecSpec spec = codec::parse_codec(text, kKey);
  if (codec::is_of_layers(spec)) spec = codec::parse_codec("qsgd1");
  spec.error_feedback = spec.stochastic = false;
  return codec::print_codec(spec);
}

void check_surroundings(const Run& run, const Placement& placement) {
  if (placement.weights > 1 || placement.gradients > 1 || placement.optimizer > 1)
    refuse(run, "gradients or state are split, so there is no all-reduce of whole gradients",
           "placement.preset = \"ddp\"");
  for (const codec::CodecSpec& spec : placement.codecs.gradients)
    if (spec.kind != codec::CodecKind::kNone)
      refuse(run, "placement.codecs.gradients has a codec for the same gradients",
             "placement.codecs.gradients = [\"none\"]");
  if (run.sync.policy != "every-step")
    refuse(run, fmt::format("sync.policy = \"{}\" has a codec of its own", run.sync.policy),
           fmt::format("sync.outer.codec = \"{}\"", outer_codec(run.compression.codec)));
  const MeshAxes& axes = run.mesh.axes;
  if (axes.x > 1 || axes.y > 1 || axes.z > 1 || axes.sequence > 1 || axes.stage > 1)
    refuse(run, "the layers of a rank are parts of the model's", "mesh.axes of data alone");
}

}  // namespace

std::vector<codec::Runs> layer_codecs(const CompressionOptions& options, const ModelShape& shape,
                                      int64_t parts) {
  std::vector<codec::Runs> layers;
  const codec::CodecSpec spec = codec::parse_codec(options.codec, kKey);
  if (spec.kind == codec::CodecKind::kNone) return layers;
  for (const UnitShape& unit : shape.units) {
    codec::Runs& runs = layers.emplace_back();
    runs.parts = parts;
    int64_t covered = 0;
    const auto add = [&](const codec::CodecSpec& codec, int64_t elements) {
      const bool joins = !runs.runs.empty() && codec.kind == codec::CodecKind::kNone &&
                         runs.runs.back().codec == codec;
      if (joins)
        runs.runs.back().elements += elements;
      else if (elements > 0)
        runs.runs.push_back({codec, elements});
      covered += elements;
    };
    for (const ParameterShape& parameter : unit.parameters) {
      add({}, parameter.offset - covered);
      const bool large = parameter.dims.size() > 1 &&
                         parameter.elements() >= options.skip_below_elements &&
                         fits(spec, parameter);
      add(large ? spec : codec::CodecSpec(), parameter.elements());
    }
    add({}, unit.elements - covered);
  }
  return layers;
}

void read_compression(const Run& run, Placement& placement) {
  const codec::CodecSpec spec = codec::parse_codec(run.compression.codec, kKey);
  if (spec.kind == codec::CodecKind::kNone) {
    if (run.compression.skip_below_elements != CompressionOptions().skip_below_elements)
      refuse_key(run, "compression.skip_below_elements",
                 "compression.skip_below_elements cannot take effect without compression.codec; "
                 "the nearest valid choice is to remove it, or compression.codec = \"qsgd4\"");
    return;
  }
  check_codec(run, spec);
  check_surroundings(run, placement);
  for (codec::CodecSpec& gradients : placement.codecs.gradients) gradients = spec;
}

void require_compressed_layer(const Run& run, const ModelShape& shape,
                              const std::vector<codec::Runs>& layers) {
  const auto is_sent = [](const codec::Run& one) {
    return one.codec.kind != codec::CodecKind::kNone;
  };
  const auto has_one = [&](const codec::Runs& unit) {
    return std::ranges::any_of(unit.runs, is_sent);
  };
  if (layers.empty() || std::ranges::any_of(layers, has_one)) return;
  const codec::CodecSpec spec = codec::parse_codec(run.compression.codec, kKey);
  int64_t largest = 0;
  for (const UnitShape& unit : shape.units)
    for (const ParameterShape& parameter : unit.parameters)
      if (parameter.dims.size() > 1 && fits(spec, parameter))
        largest = std::max(largest, parameter.elements());
  if (largest == 0)
    refuse(run, "no layer has two dims, or factors that are smaller than it", "\"none\"");
  refuse(run,
         fmt::format("the largest layer has {} elements, fewer than "
                     "compression.skip_below_elements = {}",
                     largest, run.compression.skip_below_elements),
         fmt::format("\"none\", or compression.skip_below_elements = {}", largest));
}

}  // namespace strait::strategy
