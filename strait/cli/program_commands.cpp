#include "strait/cli/program_commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>
#include <optional>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/cli/about.h"
#include "strait/cli/completion.h"
#include "strait/cli/plan_table.h"
#include "strait/cli/plan_text.h"
#include "strait/cli/policy_table.h"
#include "strait/cli/report_envelope.h"
#include "strait/config/keys.h"
#include "strait/config/parse.h"
#include "strait/config/place.h"
#include "strait/config/print.h"
#include "strait/config/validate.h"
#include "strait/plan/policies.h"
#include "strait/plan/search.h"
#include "strait/predict/predict.h"
#include "strait/program/memory.h"
#include "strait/program/memory_json.h"
#include "strait/report/compare.h"
#include "strait/report/plots.h"
#include "strait/report/run_report.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/design.h"
#include "strait/trace/level_json.h"
#include "strait/verify/verify.h"

namespace strait::cli {
namespace {

/// Some of what is composed still grows with the ranks: plan takes seconds at this number.
constexpr int64_t kMostRanks = 1 << 18;

int64_t ranks_of(const Command& command) {
  const int64_t ranks = command.ranks.value_or(1);
  if (ranks <= kMostRanks) return ranks;
  ErrorPlace place;
  place.key = "--ranks";
  throw UserError(
      fmt::format("--ranks {}: {} answers for at most {} ranks; the nearest valid value is {}",
                  ranks, command.name, kMostRanks, kMostRanks),
      place);
}

/// A candidate of plan costs time for each layer, and there are dozens.
constexpr int64_t kMostPlannedLayers = 512;

void check_planned_layers(const Run& run) {
  if (run.model.shape.layers <= kMostPlannedLayers) return;
  refuse_key(run, "model.shape.layers",
             fmt::format("model.shape.layers = {}: plan answers for at most {} layers; the nearest "
                         "valid value is {}",
                         run.model.shape.layers, kMostPlannedLayers, kMostPlannedLayers));
}

Run run_of(const Command& command, const PrepareRun& prepare) {
  Run run = command.cluster.empty() ? load_run(command.path, command.sets)
                                    : load_run_on(command.cluster, command.path, command.sets);
  prepare(run);
  return run;
}

int64_t vocabulary_of(const Run& run, Output& output) {
  bool assumed = false;
  const int64_t vocabulary =
      with_place(run, [&] { return strategy::design_vocabulary(run, assumed); });
  if (assumed)
    output.line(
        fmt::format("note: data.path is not set, so a vocabulary of {} is assumed", vocabulary));
  return vocabulary;
}

/// What is known of a run's data: of all, how many tokens there are; where documents are kept
/// apart, the data themselves.
struct KnownData {
  std::optional<Corpus> corpus;
  int64_t vocabulary = 0;
  const Corpus* documents() const { return corpus ? &*corpus : nullptr; }
};
KnownData known_data(const Run& run, Output& output) {
  KnownData known;
  known.corpus = with_place(run, [&] { return strategy::design_corpus(run); });
  const bool told = known.corpus && !known_vocabulary(run.data);  // then data are not read again
  known.vocabulary = told ? known.corpus->tokenizer->vocabulary_size() : vocabulary_of(run, output);
  return known;
}

strategy::Design design_of(const Run& run, int64_t ranks, const KnownData& data) {
  return strategy::make_design(run, ranks, data.vocabulary, 0, data.documents());
}

/// Refuses a file that cannot be written, before anything takes time.
void require_targets(const Command& command) {
  for (const std::string& path : {command.json, command.output, command.trace, command.plot})
    require_folder_of(path);
  if (!command.plot.empty()) report::require_picture_name(command.plot);
}

using Peaks = std::vector<program::MemoryUse>;  // by rank class

/// What tells one design from another, and what its ranks hold; nulls without a design.
Json design_json(const strategy::Design* design, const Peaks& peaks = {}) {
  if (design == nullptr)
    return Json::object({{"ranks", Json()},
                         {"precision", Json()},
                         {"placement", Json()},
                         {"mesh", Json()},
                         {"memory", Json()},
                         {"has_bytes", Json()}});
  Json memory = Json::array();
  for (const program::MemoryUse& use : peaks) memory.push_back(program::to_json(use));
  return Json::object({{"ranks", design->batch.ranks},
                       {"precision", design->run.train.precision},
                       {"placement", design->placement.preset},
                       {"mesh", mesh_json(design->mesh)},
                       {"memory", std::move(memory)},
                       {"has_bytes", plan::usable_bytes(*design)}});
}

/// Of the rank that holds most.
int64_t most_bytes(const Peaks& peaks) { return peaks[program::largest(peaks)].total(); }

void warn_of_memory(const strategy::Design& design, const Peaks& peaks, Output& output) {
  const int64_t needs = most_bytes(peaks), has = plan::usable_bytes(design);
  if (needs <= has) return;
  output.line(fmt::format(
      "warning     a rank needs {} at the peak and may hold {}: plan.memory_share = {} of the "
      "cluster's {}; strait plan tells what fits",
      bytes_text(static_cast<double>(needs)), bytes_text(static_cast<double>(has)),
      design.run.plan.memory_share, bytes_text(static_cast<double>(design.cluster.memory_bytes))));
}

Json problem_json(const UserError& problem) {
  const ErrorPlace& place = problem.place();
  return Json::object({{"kind", "run-file"},
                       {"op", place.key ? Json(*place.key) : Json()},
                       {"other", Json()},
                       {"message", problem.what()},
                       {"file", place.file ? Json(*place.file) : Json()},
                       {"line", place.line ? Json(*place.line) : Json()}});
}

/// Tells all problems; the report holds them too.
[[noreturn]] void refuse_all(const Command& command, const Problems& problems, Output& output) {
  Json list = Json::array();
  for (const UserError& problem : problems.found()) {
    output.line(error_line(problem));
    list.push_back(problem_json(problem));
  }
  output.partial() = design_json(nullptr);
  for (const char* unknown : {"rank_classes", "step_kinds", "ops", "values"})
    output.partial()[unknown] = Json();
  output.partial()["problems"] = std::move(list);
  const size_t count = problems.found().size();
  if (count == 1) throw problems.found().front();
  throw UserError(fmt::format("{} has {} problems", command.path, count),
                  problems.found().front().place());
}

/// The run file's design, once nothing of it is wrong.
strategy::Design checked_design(const Command& command, Output& output) {
  const int64_t ranks = ranks_of(command);
  Problems problems;
  const Run run = parse_run(read_file(command.path), command.path, command.sets, problems);
  validate_run(run, ranks, problems);
  std::optional<strategy::Design> design;
  if (problems.found().empty())
    problems.attempt([&] { design = design_of(run, ranks, known_data(run, output)); });
  if (!design) refuse_all(command, problems, output);
  return std::move(*design);
}

Json verify_command(const Command& command, Output& output) {
  require_targets(command);
  const strategy::Design design = checked_design(command, output);
  int64_t ops = 0, values = 0, classes = 0;
  Json problems = Json::array(), step_kinds = Json::array();
  for (const program::StepKind& kind : design.programs.kinds) {
    step_kinds.push_back(kind.name);
    classes = std::max(classes, static_cast<int64_t>(kind.classes.size()));
    for (const program::Program& program : kind.classes) {
      if (command.print) output.line(program::print(program));
      ops += program::count_ops(program);
      for (const program::ValueArray& array : program.arrays) values += array.count;
    }
  }
  for (const program::Problem& problem : program::verify(design.programs)) {
    output.line(problem.message);
    problems.push_back(Json::object({{"kind", problem.kind},
                                     {"op", problem.op},
                                     {"other", problem.other},
                                     {"message", problem.message}}));
  }
  const Peaks peaks = predict::peak_memories(design);
  warn_of_memory(design, peaks, output);
  for (const std::string& line : effect_warnings(design)) output.line(line);
  output.line(fmt::format(
      "verified: {} step kinds, {} rank class{}, {} operations, {} values, {} problems",
      step_kinds.size(), classes, classes == 1 ? "" : "es", ops, values, problems.size()));
  Json body = design_json(&design, peaks);
  body["rank_classes"] = classes;
  body["step_kinds"] = std::move(step_kinds);
  body["ops"] = ops;
  body["values"] = values;
  body["problems"] = problems;
  if (problems.size() == 0) return body;
  output.partial() = std::move(body);
  throw UserError(fmt::format("{} has {} problems", command.path, problems.size()));
}

/// A trace with one timeline per representative, named by its rank, and a picture of the first.
void write_timelines(const Command& command, const strategy::Design& design,
                     const sim::Result& result, const std::vector<trace::Recorder>& recorders) {
  std::vector<trace::Timeline> timelines;
  for (size_t at = 0; at < recorders.size(); ++at) {
    const int64_t rank = result.representatives[at].rank;
    const program::Program& step = program::class_of(design.round.classes, rank);
    timelines.push_back({rank, &recorders[at], program::stream_names(step)});
  }
  if (!command.trace.empty()) write_file_atomically(command.trace, trace::chrome_trace(timelines));
  if (command.plot.empty()) return;
  const trace::Timeline& first = timelines.front();
  report::draw_timeline(*first.spans, first.streams, command.plot);
}

Json simulate_command(const Command& command, const Run& run, Output& output) {
  const int64_t ranks = ranks_of(command);
  const KnownData data = known_data(run, output);
  const strategy::Design design = design_of(run, ranks, data);
  const double began = now_seconds();
  std::vector<trace::Recorder> recorders;  // one per representative
  const bool records = !command.trace.empty() || !command.plot.empty();
  sim::Result result = predict::simulate(design, records ? &recorders : nullptr);
  // Without jitter every step is the same, so one stands for all of them.
  result.events *= run.simulate.steps;
  const double wall = now_seconds() - began;
  const cost::Cost cost = predict::price(design);
  for (const std::string& line : plan_lines(design, result, cost, data.documents()))
    output.line(line);
  const Peaks peaks = predict::peak_memories(design);
  warn_of_memory(design, peaks, output);
  write_timelines(command, design, result, recorders);
  const double tokens = static_cast<double>(tokens_per_step(run, design.batch));
  const double rate = design.cluster.flops_per_second(design.dtype);
  Json body = design_json(&design, peaks);
  const Json figures = Json::object(
      {{"rank_classes", result.rank_classes},
       {"events", result.events},
       {"wall_seconds", wall},
       {"seconds_per_step", result.seconds},
       {"predicted_from", source_text(design.cluster)},
       {"compute_seconds", result.compute_seconds},
       {"exposed_communication_seconds", result.exposed_seconds},
       {"exposed_communication_share",
        result.seconds > 0 ? result.exposed_seconds / result.seconds : 0.0},
       {"bubble_share", result.bubble_share()},
       {"bytes_per_step", trace::levels_json(result.traffic, level_names(design.cluster), 1)},
       {"tokens_per_second", tokens / result.seconds},
       {"model_flops_utilization", tokens * design.model_flops_per_token / result.seconds /
                                       (rate * static_cast<double>(ranks))},
       {"goodput", Json()},
       {"trace", command.trace.empty() ? Json() : Json(command.trace)}});
  for (const auto& [key, value] : figures.as_object()) body[key] = value;
  return body;
}

/// Words of plan.search that change what a rank holds, and the file does not have.
std::vector<std::string> left_out_of(const std::vector<std::string>& search) {
  std::vector<std::string> left_out;
  for (const char* word :
       {"mesh", "placement", "pipeline", "sequence", "micro_batch_size", "recompute"})
    if (std::find(search.begin(), search.end(), word) == search.end()) left_out.push_back(word);
  return left_out;
}

/// The run as it needs least of each rank without sharing blocks or sequences.
Run thinnest(Run run, int64_t ranks) {
  run.placement = PlacementOptions();  // zero3
  std::erase_if(run.written, [](const auto& key) { return key.first.starts_with("placement."); });
  run.train.micro_batch_size = 1;
  run.train.recompute = "block";
  if (run.train.global_batch_tokens == 0)
    run.train.global_batch_size = (run.train.global_batch_size + ranks - 1) / ranks * ranks;
  return run;
}

/// Its design; nullopt where so many ranks do not fill the cluster or the batch.
std::optional<strategy::Design> thinnest_design(const Run& run, int64_t ranks,
                                                const KnownData& data) {
  try {
    return design_of(thinnest(run, ranks), ranks, data);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

/// Of a run that fits on no candidate: what to search too, or how many ranks would do.
std::string what_would_fit(const Run& run, int64_t ranks, const KnownData& data) {
  const std::vector<std::string> left_out = left_out_of(run.plan.search);
  if (!left_out.empty())
    return fmt::format("plan.search leaves out {}, with which less may do",
                       fmt::join(left_out, ", "));
  int64_t tried = 0;
  for (int64_t more = 2 * ranks; more <= std::min(16 * ranks, kMostRanks); more *= 2) {
    const std::optional<strategy::Design> design = thinnest_design(run, more, data);
    if (!design) continue;
    tried = more;
    const int64_t needs = most_bytes(predict::peak_memories(*design));
    if (needs <= plan::usable_bytes(*design))
      return fmt::format(
          "{} ranks with placement.preset = \"zero3\", train.recompute = \"block\", "
          "train.micro_batch_size = 1 and train.global_batch_size = {} would need {} each",
          more, design->batch.global_batch_size, bytes_text(static_cast<double>(needs)));
  }
  if (tried == 0) return "more ranks or a smaller model may";
  return fmt::format(
      "nor do up to {} ranks with placement.preset = \"zero3\"; a shorter model.shape.context or "
      "fewer model.shape.layers need less",
      tried);
}

[[noreturn]] void refuse_memory(std::vector<plan::Rejection> rejected,
                                const std::string& what_would) {
  std::erase_if(rejected, [](const plan::Rejection& one) { return !one.is_of_memory(); });
  const plan::Rejection& nearest = *std::min_element(
      rejected.begin(), rejected.end(), [](const plan::Rejection& a, const plan::Rejection& b) {
        return a.needs_bytes < b.needs_bytes;
      });
  throw NothingFits(fmt::format(
      "nothing fits: the smallest, {}, needs {} per rank (most of it {}), and {} are there; {}",
      nearest.smallest, bytes_text(static_cast<double>(nearest.needs_bytes)), nearest.where,
      bytes_text(static_cast<double>(nearest.has_bytes)), what_would));
}

/// `best`: the policy that comes nearest to the target.
[[noreturn]] void refuse_links(const plan::Candidate& best) {
  const double reached = best.policy->utilization;
  throw NothingFits(fmt::format(
      "no policy keeps utilization at {}: the nearest, {}, reaches {:.4f}; the nearest valid value "
      "of plan.utilization is {:.4f}",
      best.design.run.plan.utilization, best.design.policy.describe(), reached,
      std::floor(reached * 1e4) / 1e4));
}

/// The written keys that the best candidate does not keep.
void tell_varied_keys(const Run& run, const Run& best, Output& output) {
  std::vector<std::string> varied;
  for (const Key& key : run_keys())
    if (run.is_set(key.name) && !same_value(key, run, Run()) && !same_value(key, run, best))
      varied.push_back(key.name);
  if (!varied.empty())
    output.line(fmt::format(
        "note: the first has other values than the run file of what plan.search varies: {}",
        fmt::join(varied, ", ")));
}

/// Of the best candidate.
void warn(const plan::SearchResult& result, Output& output) {
  if (result.candidates.empty()) return;
  const plan::Candidate& best = result.candidates.front();
  for (const std::string& line : effect_warnings(best.design)) output.line(line);
  const std::string warning =
      peak_warning(plan::model_flops_utilization(best), best.design.cluster, best.design.dtype);
  if (!warning.empty()) output.line(warning);
}

/// Shows on a terminal how far a search is, which may take minutes.
class SearchProgress {
 public:
  explicit SearchProgress(Output& output) : output_(output) {}

  void operator()(const Run& run) {
    const std::scoped_lock lock(mutex_);
    const std::string text = fmt::format("{:.0f} s  candidate {}: {}", now_seconds() - began_,
                                         ++tried_, plan::candidate_text(run));
    output_.progress(text.substr(0, static_cast<size_t>(output_.columns() - 1)));
  }

 private:
  Output& output_;
  const double began_ = now_seconds();
  std::mutex mutex_;
  int64_t tried_ = 0;
};

/// What was searched, as the text says it; refused when none of it will do.
plan::SearchResult search_and_tell(const Run& run, int64_t ranks, Output& output) {
  const KnownData data = known_data(run, output);
  const bool policies = plan::searches_policies(run);
  SearchProgress progress(output);
  const plan::Watch watch = std::ref(progress);
  plan::SearchResult result =
      policies ? plan::search_policies(run, ranks, data.vocabulary, watch)
               : plan::search(run, ranks, data.vocabulary, data.documents(), watch);
  const auto table = policies ? policy_table : plan_table;
  for (const std::string& line : table(result, run.plan.keep)) output.line(line);
  warn(result, output);
  output.partial() = plan::search_json(result, ranks, run.plan.keep, "");
  if (result.candidates.empty()) refuse_memory(result.rejected, what_would_fit(run, ranks, data));
  tell_varied_keys(run, result.candidates.front().design.run, output);
  const plan::Candidate& best = result.candidates.front();
  if (policies && !plan::reaches_target(best)) refuse_links(best);
  return result;
}

Json plan_command(const Command& command, const Run& run, Output& output) {
  const int64_t ranks = ranks_of(command);
  check_planned_layers(run);
  const plan::SearchResult result = search_and_tell(run, ranks, output);
  const plan::Candidate& best = result.candidates.front();
  std::string written;
  if (!command.output.empty()) {
    Run chosen = best.design.run;
    chosen.plan.utilization = 0;  // its policy is chosen and no longer varies
    write_file_atomically(command.output, print_run(chosen));
    written = command.output;
    output.line(
        fmt::format("wrote the first to {}: strait train {} --ranks {}", written, written, ranks));
  }
  Json body = plan::search_json(result, ranks, run.plan.keep, written);
  body["predicted_from"] = source_text(best.design.cluster);
  return body;
}

Json report_command(const Command& command, Output& output) {
  const report::ReportOptions options{.folder = command.output};
  report::RunReport report = command.paths.size() > 1 ? report::compare_runs(command.paths, options)
                                                      : report::report_run(command.path, options);
  output.line(report.text);
  return std::move(report.summary);
}

}  // namespace

namespace {

Json completion_command(const Command& command, Output& output) {
  const std::string script = completion_script(command.subject, describe_commands());
  output.line(script);
  return Json::object({{"shell", command.subject}, {"script", script}});
}

}  // namespace

CommandTable program_commands(const PrepareRun& prepare) {
  const auto with_run = [&](Json (*handler)(const Command&, const Run&, Output&)) {
    return [handler, prepare](const Command& command, Output& output) {
      require_targets(command);
      return handler(command, run_of(command, prepare), output);
    };
  };
  return {{"verify", verify_command},         {"simulate", with_run(simulate_command)},
          {"plan", with_run(plan_command)},   {"report", report_command},
          {"completion", completion_command}, {"version", version_handler([] { return Parts(); })}};
}

}  // namespace strait::cli
