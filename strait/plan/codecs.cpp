#include "strait/plan/codecs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "strait/plan/trials.h"

namespace strait::plan {
namespace {

/// nullptr for a preset that does not exist.
const strategy::PlacementRow* row_of(const std::string& preset) {
  const auto& rows = strategy::placement_table();
  const auto row = std::ranges::find_if(
      rows, [&](const strategy::PlacementRow& one) { return one.name == preset; });
  return row == rows.end() ? nullptr : &*row;
}

template <class T>
void choose_unwritten(Run& run, const char* key, T& field, T value) {
  if (!run.is_set(key)) choose(run, key, field, std::move(value));
}

void choose_weights(Run& run, const std::string& codec) {
  choose_unwritten(run, "placement.codecs.weights", run.placement.codecs.weights, codec);
}
void choose_update(Run& run, const std::string& codec) {
  choose_unwritten(run, "placement.codecs.update", run.placement.codecs.update, codec);
}
void choose_gradients(Run& run, const std::string& codec) {
  choose_unwritten(run, "placement.codecs.gradients", run.placement.codecs.gradients, {codec});
}

bool writes_codecs(const Run& run) {
  return std::ranges::any_of(run.written, [](const auto& entry) {
    return entry.first.starts_with("placement.codecs.") || entry.first == "compression.codec";
  });
}

}  // namespace

std::string plain_codec(const Run& run) {
  const std::string& precision = run.train.precision;
  return precision == "bf16" || precision == "fp16" ? precision : "none";
}

bool compresses(const Run& run, const codec::CodecSpec& spec) {
  return spec.kind != codec::parse_codec(plain_codec(run)).kind &&
         spec.kind != codec::CodecKind::kNone;
}

int64_t compressed_kinds(const strategy::Design& design) {
  const auto smaller = [&](const codec::CodecSpec& spec) { return compresses(design.run, spec); };
  const strategy::StateCodecs& codecs = design.placement.codecs;
  const bool kinds[] = {
      smaller(codecs.weights), smaller(codecs.secondary), smaller(codecs.update),
      design.run.compression.codec != "none" || std::ranges::any_of(codecs.gradients, smaller),
      design.run.pipeline.activation_codec != "none"};
  return std::ranges::count(kinds, true);
}

Run without_codecs(Run run) {
  const strategy::PlacementRow* row = row_of(run.placement.preset);
  if (row == nullptr) return run;
  const std::string plain = plain_codec(run);
  const auto brings = [](const char* codec) { return std::string(codec) != "none"; };
  if (brings(row->weights_codec)) choose_weights(run, plain);
  if (brings(row->update_codec)) choose_update(run, plain);
  if (brings(row->gradients_codec)) choose_gradients(run, plain);
  return run;
}

std::vector<Run> with_codecs(const strategy::Design& design) {
  if (compresses(design) || writes_codecs(design.run)) return {};
  if (design.batch.data_ranks * design.mesh.axis("sequence").size == 1) return {};  // no sums
  const strategy::Placement& placement = design.placement;
  const strategy::PlacementRow& usual = *row_of("zero-topo");
  std::vector<Run> runs = {design.run};
  choose_gradients(runs.front(), usual.gradients_codec);
  if (placement.optimizer == 1) return runs;
  Run both = runs.front();
  if (placement.weights < placement.optimizer)
    choose_update(both, usual.update_codec);
  else
    choose_weights(both, usual.update_codec);
  runs.push_back(std::move(both));
  return runs;
}

std::string codecs_text(const Run& run) {
  std::vector<std::string> parts;
  const auto add = [&](const char* what, const std::string& codec) {
    const auto key = run.written.find(std::string("placement.codecs.") + what);
    if (key != run.written.end() && key->second.file == kPlanPlace)
      parts.push_back(fmt::format("{} {}", what, codec));
  };
  const PlacementCodecs& codecs = run.placement.codecs;
  add("weights", codecs.weights);
  add("gradients", codecs.gradients.front());
  add("update", codecs.update);
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace strait::plan
