#include "strait/plan/codec_advice.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/plan/candidate.h"
#include "strait/predict/predict.h"
#include "strait/sim/simulate.h"

namespace strait::plan {
namespace {

struct Switch {
  const char* key;
  bool set = false;
  void (*clear)(Run&, const std::string& plain);
};

}  // namespace

std::vector<std::string> codec_advice(const strategy::Design& design, double seconds) {
  const std::string& precision = design.run.train.precision;
  const std::string usual = precision == "bf16" || precision == "fp16" ? precision : "none";
  const codec::CodecKind plain = codec::parse_codec(usual).kind;
  const auto set = [&](const codec::CodecSpec& spec) {
    return spec.kind != plain && spec.kind != codec::CodecKind::kNone;
  };
  const strategy::StateCodecs& codecs = design.placement.codecs;
  const Switch switches[] = {
      {"placement.codecs.weights", set(codecs.weights),
       [](Run& run, const std::string& text) { run.placement.codecs.weights = text; }},
      {"placement.codecs.secondary", set(codecs.secondary),
       [](Run& run, const std::string&) { run.placement.codecs.secondary = "none"; }},
      {"placement.codecs.update", set(codecs.update),
       [](Run& run, const std::string& text) { run.placement.codecs.update = text; }},
      {"placement.codecs.gradients",
       std::any_of(codecs.gradients.begin(), codecs.gradients.end(), set),
       [](Run& run, const std::string& text) { run.placement.codecs.gradients = {text}; }},
  };
  std::vector<std::string> lines;
  for (const Switch& one : switches) {
    if (!one.set) continue;
    Run without = design.run;
    one.clear(without, usual);
    without.written[one.key] = {"advice", 0};
    const strategy::Design other =
        strategy::make_design(without, design.batch.ranks, design.shape.vocabulary);
    const double plain_seconds = predict::simulate(other).seconds;
    if (plain_seconds > kAlike * seconds) continue;
    lines.push_back(fmt::format(
        "warning     {} is predicted to bring nothing on cluster {}: a step of {:.4g} s "
        "with it, {:.4g} s without",
        one.key, design.cluster.name, seconds, plain_seconds));
  }
  return lines;
}

}  // namespace strait::plan
