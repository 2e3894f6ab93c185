#include "strait/plan/codec_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "strait/base/errors.h"
#include "strait/plan/candidate.h"
#include "strait/plan/codecs.h"
#include "strait/predict/predict.h"
#include "strait/sim/simulate.h"

namespace strait::plan {
namespace {

struct Switch {
  const char* key;
  bool set = false;
  void (*clear)(Run&, const std::string& plain);
};

/// Of a step of `run` on the ranks of `design`; nothing where it cannot be: another codec may need
/// the one that it lacks.
std::optional<double> seconds_of(const Run& run, const strategy::Design& design,
                                 const Corpus* corpus) {
  try {
    return predict::simulate(
               strategy::make_design(run, design.batch.ranks, design.shape.vocabulary, 0, corpus))
        .seconds;
  } catch (const UserError&) {
    return {};
  }
}

}  // namespace

std::vector<std::string> codec_advice(const strategy::Design& design, double seconds,
                                      const Corpus* corpus) {
  const std::string usual = plain_codec(design.run);
  const auto set = [&](const codec::CodecSpec& spec) { return compresses(design.run, spec); };
  const strategy::StateCodecs& codecs = design.placement.codecs;
  const bool of_layers = design.run.compression.codec != "none";  // those of the gradients
  const Switch switches[] = {
      {"placement.codecs.weights", set(codecs.weights),
       [](Run& run, const std::string& text) { run.placement.codecs.weights = text; }},
      {"placement.codecs.secondary", set(codecs.secondary),
       [](Run& run, const std::string&) { run.placement.codecs.secondary = "none"; }},
      {"placement.codecs.update", set(codecs.update),
       [](Run& run, const std::string& text) { run.placement.codecs.update = text; }},
      {"placement.codecs.gradients",
       !of_layers && std::any_of(codecs.gradients.begin(), codecs.gradients.end(), set),
       [](Run& run, const std::string& text) { run.placement.codecs.gradients = {text}; }},
      {"compression.codec", of_layers,
       [](Run& run, const std::string&) {
         run.compression = {};
         std::erase_if(run.written, [](const auto& key) {
           return key.first.starts_with("compression.") || key.first.starts_with("lgreco.");
         });
       }},
  };
  std::vector<std::string> lines;
  for (const Switch& one : switches) {
    if (!one.set) continue;
    Run without = design.run;
    one.clear(without, usual);
    without.written[one.key] = {"advice", 0};
    const std::optional<double> plain_seconds = seconds_of(without, design, corpus);
    if (!plain_seconds || *plain_seconds > kAlike * seconds) continue;
    lines.push_back(fmt::format(
        "warning     {} is predicted to bring nothing on cluster {}: a step of {:.4g} s "
        "with it, {:.4g} s without",
        one.key, design.cluster.name, seconds, *plain_seconds));
  }
  return lines;
}

}  // namespace strait::plan
