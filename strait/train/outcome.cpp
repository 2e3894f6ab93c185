#include "strait/train/outcome.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/predict/predict.h"
#include "strait/program/memory_json.h"
#include "strait/report/statistics.h"
#include "strait/shape/modules.h"
#include "strait/strategy/adapt/policy.h"
#include "strait/trace/level_json.h"
#include "strait/train/validation.h"

namespace strait::train {
namespace {

void add_losses(const Job& job, const Outcome& outcome, Json& body) {
  body["train_loss"] = report::final_loss(outcome.losses);
  Json points = Json::array();
  double best = report::kUnknown;
  for (const ValidationPoint& point : outcome.validation) {
    points.push_back(Json::object({{"step", point.step}, {"loss", point.loss}}));
    if (std::isfinite(point.loss) && !(best <= point.loss)) best = point.loss;
  }
  const double last =
      outcome.validation.empty() ? report::kUnknown : outcome.validation.back().loss;
  body["validation_loss"] = last;
  body["best_validation_loss"] = best;
  body["validation_bits_per_byte"] = bits_per_byte(job, last);
  body["losses"] = outcome.losses;
  body["validation"] = points;
}

void add_speed(const Job& job, const Outcome& outcome, Json& body) {
  const report::Statistics seconds = report::statistics_of(outcome.step_seconds);
  body["seconds_per_step"] = report::to_json(seconds);
  body["save_stall_seconds"] =
      outcome.save_stall_seconds.empty()
          ? Json()
          : report::to_json(report::statistics_of(outcome.save_stall_seconds));
  body["wall_seconds"] = Json::object({{"training", outcome.wall.training},
                                       {"steps", outcome.wall.steps},
                                       {"evaluation", outcome.wall.evaluation},
                                       {"saving", outcome.wall.saving}});
  body["tokens_per_second"] = tokens_per_second(outcome);
  body["model_flops_per_token"] = job.model_flops_per_token;
  body["device"] = job.device ? job.device->name() : "cpu";
  const kernel::ProductChoice& products = job.design.run.runtime.chosen;
  const bool chosen = products.products != kernel::NarrowProducts::kAutomatic;
  body["products"] = chosen ? Json(kernel::product_name(products.products)) : Json();
  body["products_reason"] = chosen ? Json(products.reason) : Json();
  body["peak_flops_per_second"] = job.peak_flops_per_second;
  body["peak_flops_source"] = job.design.cluster.rates_source;
  body["model_flops_utilization"] = model_flops_utilization(job, outcome);
}

Json overlap_json(const Overlap& overlap) {
  return Json::object({{"steps", overlap.steps},
                       {"seconds", overlap.seconds},
                       {"serial_seconds", overlap.serial_seconds},
                       {"floor_seconds", overlap.floor_seconds},
                       {"communication_seconds", overlap.communication_seconds},
                       {"hidden_share", overlap.hidden_share()},
                       {"hidden_share_without_floor", overlap.hidden_share_without_floor()}});
}

/// A device's links are neither: nobody has told the two apart there.
Json crossed_json(const Outcome& outcome, int64_t steps) {
  const int64_t network = outcome.traffic.network_bytes();
  const int64_t counted = std::max<int64_t>(steps, 1);
  const bool known = outcome.backend != "nccl";
  return Json::object({{"shared_memory_bytes",
                        known ? Json((outcome.traffic.bytes() - network) / counted) : Json()},
                       {"network_bytes", known ? Json(network / counted) : Json()}});
}

Json ledger_json(const Ledger& ledger) {
  Json rows = Json::array();
  for (const Traffic& row : ledger.rows())
    rows.push_back(Json::object({{"operation", row.operation},
                                 {"level", row.level},
                                 {"codec", row.codec},
                                 {"payload_bytes", row.payload_bytes},
                                 {"metadata_bytes", row.metadata_bytes},
                                 {"count", row.count}}));
  return Json::object({{"rows", rows}, {"network_bytes", ledger.network_bytes()}});
}

void add_ledger(const Json& json, Ledger& ledger) {
  ledger.add_network(json.at("network_bytes").as_integer());
  for (const Json& row : json.at("rows").as_array())
    ledger.add({row.at("operation").as_string(), row.at("level").as_integer(),
                row.at("codec").as_string(), row.at("payload_bytes").as_integer(),
                row.at("metadata_bytes").as_integer(), row.at("count").as_integer()});
}

void add_traffic(const Job& job, const Outcome& outcome, Json& body) {
  const std::vector<std::string> names = level_names(job.design.cluster);
  const int64_t steps = outcome.steps - outcome.first_step;
  body["bytes_per_step"] =
      Json::object({{"runtime", trace::levels_json(outcome.traffic, names, steps)},
                    {"simulated", trace::levels_json(job.simulated.traffic, names, 1)},
                    {"cost", trace::levels_json(job.cost.traffic, names, 1)}});
  body["crossed_per_step"] = crossed_json(outcome, steps);
  body["traffic"] = trace::traffic_json(outcome.traffic, names, steps);
  const auto whole_run = [&](const Ledger& ledger) {
    return Json::object({{"bytes", ledger.bytes()},
                         {"network_bytes", ledger.network_bytes()},
                         {"traffic", trace::traffic_json(ledger, names, 1)}});
  };
  body["between_steps"] = whole_run(outcome.between_steps);
  body["bookkeeping"] = whole_run(outcome.bookkeeping);
  double exposed = 0;
  for (const double share : outcome.exposed_shares) exposed += share;
  body["exposed_communication_share"] =
      exposed / static_cast<double>(outcome.exposed_shares.size());
  body["overlap"] = outcome.overlap ? overlap_json(*outcome.overlap) : Json();
  body["predicted_seconds_per_step"] = job.simulated.seconds;
  body["predicted_from"] = source_text(job.design.cluster);
}

/// Null without compression.codec; `layers` have the settings of the last choice.
Json compression_json(const strategy::Design& design, const Outcome& outcome) {
  if (design.placement.layers.empty()) return Json();
  const std::vector<strategy::AdaptedLayer> layers =
      strategy::adapted_layers(design.shape, design.placement.layers);
  std::vector<std::string> names;
  if (!outcome.settings.empty())
    names = strategy::setting_names(layers, outcome.settings.back().choice.settings);
  // Gradients, and so their factors, are fp32, or fp64 in runs of fp64.
  const Dtype gradient = design.dtype == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
  const auto bytes = [&](const strategy::AdaptedLayer& layer, const codec::CodecSpec& setting) {
    return strategy::layer_bytes(layer, setting, design.placement.replicas(), gradient);
  };
  Json rows = Json::array(), choices = Json::array();
  for (size_t l = 0; l < layers.size(); ++l) {
    const codec::Run& run = layers[l].uniform;
    const codec::CodecSpec setting = names.empty() ? run.codec : codec::parse_codec(names[l]);
    rows.push_back(Json::object({{"name", layers[l].name},
                                 {"elements", run.elements},
                                 {"setting", codec::print_codec(setting)},
                                 {"bytes_per_step", bytes(layers[l], setting)},
                                 {"uniform_bytes_per_step", bytes(layers[l], run.codec)}}));
  }
  for (const persist::ChosenSettings& chosen : outcome.settings)
    choices.push_back(persist::to_json(chosen, layers));
  return Json::object({{"codec", design.run.compression.codec},
                       {"adapt", design.run.compression.adapt},
                       {"layers", std::move(rows)},
                       {"choices", std::move(choices)}});
}

void add_memory(const Outcome& outcome, Json& body) {
  Json state = Json::array();
  for (const program::MemoryUse& use : outcome.state_bytes) state.push_back(program::to_json(use));
  body["state_bytes"] = state;
  body["predicted_peak_bytes"] = outcome.predicted_peak_bytes;
  body["allocator_peak_bytes"] = outcome.pool_peak_bytes;
  body["peak_resident_bytes"] = outcome.peak_resident_bytes;
}

}  // namespace

double tokens_per_second(const Outcome& outcome) {
  const std::vector<double>& seconds = outcome.step_seconds;
  return static_cast<double>(outcome.timed_tokens) /
         std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

double model_flops_utilization(const Job& job, const Outcome& outcome) {
  const std::vector<double>& seconds = outcome.step_seconds;
  return outcome.timed_model_flops / std::accumulate(seconds.begin(), seconds.end(), 0.0) /
         job.peak_flops_per_second;
}

double bits_per_byte(const Job& job, double validation_loss) {
  const int64_t windows = evaluated_windows(*job.validation, job.design.run);
  return strait::bits_per_byte(validation_loss, job.validation->scored(windows));
}

double Overlap::hidden_share() const {
  return serial_seconds > floor_seconds && seconds >= floor_seconds
             ? (serial_seconds - seconds) / (serial_seconds - floor_seconds)
             : report::kUnknown;
}

double Overlap::hidden_share_without_floor() const {
  return communication_seconds > 0 ? (serial_seconds - seconds) / communication_seconds
                                   : report::kUnknown;
}

Json rank_part(const Outcome& outcome, int64_t rank) {
  const size_t own = static_cast<size_t>(rank);
  return Json::object({{"exposed_share", outcome.exposed_shares[own]},
                       {"pool_peak_bytes", outcome.pool_peak_bytes[own]},
                       {"peak_resident_bytes", outcome.peak_resident_bytes},
                       {"traffic", ledger_json(outcome.traffic)},
                       {"between_steps", ledger_json(outcome.between_steps)},
                       {"bookkeeping", ledger_json(outcome.bookkeeping)}});
}

void add_rank_part(Outcome& outcome, int64_t rank, const Json& part) {
  const size_t other = static_cast<size_t>(rank);
  outcome.exposed_shares[other] = part.at("exposed_share").as_number();
  outcome.pool_peak_bytes[other] = part.at("pool_peak_bytes").as_integer();
  outcome.peak_resident_bytes += part.at("peak_resident_bytes").as_integer();
  add_ledger(part.at("traffic"), outcome.traffic);
  add_ledger(part.at("between_steps"), outcome.between_steps);
  add_ledger(part.at("bookkeeping"), outcome.bookkeeping);
}

Json outcome_json(const Job& job, const Outcome& outcome) {
  const Run& run = job.design.run;
  const int64_t steps_here = outcome.steps - outcome.first_step;
  int64_t tokens_per_step = strait::tokens_per_step(run, job.design.batch);
  if (job.documents && steps_here > 0)
    tokens_per_step = (outcome.tokens - outcome.first_tokens) / steps_here;
  else if (job.documents && outcome.steps > 0)
    tokens_per_step = outcome.tokens / outcome.steps;
  Json body = Json::object({{"ranks", job.design.batch.ranks},
                            {"backend", outcome.backend},
                            {"precision", run.train.precision},
                            {"seed", static_cast<int64_t>(run.seed)},
                            {"placement", job.design.placement.preset},
                            {"mesh", mesh_json(job.design.mesh)},
                            {"parameters", job.design.shape.parameters()},
                            {"steps", outcome.steps},
                            {"steps_this_process", steps_here},
                            {"steps_skipped", outcome.steps_skipped},
                            {"steps_taken_back", outcome.steps_taken_back},
                            {"tokens", outcome.tokens},
                            {"tokens_per_step", tokens_per_step},
                            {"stopped_by", outcome.stopped_by}});
  add_losses(job, outcome, body);
  add_speed(job, outcome, body);
  add_traffic(job, outcome, body);
  add_memory(outcome, body);
  body["compression"] = compression_json(job.design, outcome);
  body["parameter_hash"] = outcome.parameter_hash.empty() ? Json() : Json(outcome.parameter_hash);
  body["binding"] = job.binding.text;
  body["run_dir"] = job.folder.path;
  body["checkpoint"] = outcome.checkpoint.empty() ? Json() : Json(outcome.checkpoint);
  body["best_checkpoint"] =
      outcome.best_checkpoint.empty() ? Json() : Json(outcome.best_checkpoint);
  body["resume_changes"] = to_json(job.changes);
  body["resumed_from_step"] = job.resume ? Json(outcome.first_step) : Json();
  return body;
}

bool summary_is_whole(const Job& job) {
  const std::string path = job.folder.path + "/summary.json";
  try {
    return !Json::parse(read_file(path), path).at("train").is_null();
  } catch (const UserError&) {
    return false;
  }
}

void write_summary(const Job& job, const Outcome* outcome) {
  const strategy::Design& design = job.design;
  const std::vector<std::string> names = level_names(design.cluster);
  const std::vector<program::MemoryUse> peaks = predict::peak_memories(design);
  const Json plan =
      Json::object({{"total_steps", design.run.train.steps},
                    {"seconds_per_step", job.simulated.seconds},
                    {"predicted_from", source_text(design.cluster)},
                    {"prediction_note", prediction_note(design.cluster)},
                    {"loss_unit", loss_unit(design.run.model)},
                    {"compute_seconds", job.simulated.compute_seconds},
                    {"exposed_communication_seconds", job.simulated.exposed_seconds},
                    {"bytes_per_step", trace::levels_json(job.simulated.traffic, names, 1)},
                    {"memory", program::to_json(peaks[program::largest(peaks)])}});
  Json summary = Json::object({{"format", "strait.summary/1"}, {"plan", plan}});
  summary["train"] = outcome == nullptr ? Json() : outcome_json(job, *outcome);
  write_file_atomically(job.folder.path + "/summary.json", summary.dump(1) + "\n");
}

}  // namespace strait::train
