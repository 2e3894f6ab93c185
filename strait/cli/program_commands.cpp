#include "strait/cli/program_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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
  std::vector<std::string> sets = command.sets;
  if (!command.cluster.empty()) sets.push_back(cluster_setting(command.cluster));
  Run run = load_run(command.path, sets);
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

/// What is known of a run's data: of all, how many tokens there are; where batches are of
/// documents, the data themselves.
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
  output.partial() = Json::object({{"rank_classes", Json()},
                                   {"step_kinds", Json()},
                                   {"ops", Json()},
                                   {"values", Json()},
                                   {"problems", list}});
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
  output.line(fmt::format(
      "verified: {} step kinds, {} rank class{}, {} operations, {} values, {} problems",
      step_kinds.size(), classes, classes == 1 ? "" : "es", ops, values, problems.size()));
  Json body = Json::object({{"rank_classes", classes},
                            {"step_kinds", step_kinds},
                            {"ops", ops},
                            {"values", values},
                            {"problems", problems}});
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

Json memory_json(const std::vector<program::MemoryUse>& classes) {
  Json json = Json::array();
  for (const program::MemoryUse& use : classes) json.push_back(program::to_json(use));
  return json;
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
  write_timelines(command, design, result, recorders);
  const double tokens = static_cast<double>(tokens_per_step(run, design.batch));
  const double rate = design.cluster.flops_per_second(design.dtype);
  return Json::object(
      {{"ranks", ranks},
       {"rank_classes", result.rank_classes},
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
       {"memory", memory_json(predict::peak_memories(design))},
       {"tokens_per_second", tokens / result.seconds},
       {"model_flops_utilization", tokens * design.model_flops_per_token / result.seconds /
                                       (rate * static_cast<double>(ranks))},
       {"goodput", Json()},
       {"trace", command.trace.empty() ? Json() : Json(command.trace)}});
}

[[noreturn]] void refuse_memory(std::vector<plan::Rejection> rejected) {
  std::erase_if(rejected, [](const plan::Rejection& one) { return !one.is_of_memory(); });
  const plan::Rejection& nearest = *std::min_element(
      rejected.begin(), rejected.end(), [](const plan::Rejection& a, const plan::Rejection& b) {
        return a.needs_bytes < b.needs_bytes;
      });
  throw NothingFits(fmt::format(
      "nothing fits: the smallest, {}, needs {} per rank (most of it {}), and {} are there",
      nearest.smallest, bytes_text(static_cast<double>(nearest.needs_bytes)), nearest.where,
      bytes_text(static_cast<double>(nearest.has_bytes))));
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

/// What was searched, as the text says it; refused when none of it will do.
plan::SearchResult search_and_tell(const Run& run, int64_t ranks, Output& output) {
  const KnownData data = known_data(run, output);
  const bool policies = plan::searches_policies(run);
  plan::SearchResult result = policies
                                  ? plan::search_policies(run, ranks, data.vocabulary)
                                  : plan::search(run, ranks, data.vocabulary, data.documents());
  const auto table = policies ? policy_table : plan_table;
  for (const std::string& line : table(result, run.plan.keep)) output.line(line);
  output.partial() = plan::search_json(result, ranks, run.plan.keep, "");
  if (result.candidates.empty()) refuse_memory(result.rejected);
  const plan::Candidate& best = result.candidates.front();
  if (policies && !plan::reaches_target(best)) refuse_links(best);
  return result;
}

Json plan_command(const Command& command, const Run& run, Output& output) {
  const int64_t ranks = ranks_of(command);
  check_planned_layers(run);
  require_folder_of(command.output);
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
      return handler(command, run_of(command, prepare), output);
    };
  };
  return {{"verify", verify_command},         {"simulate", with_run(simulate_command)},
          {"plan", with_run(plan_command)},   {"report", report_command},
          {"completion", completion_command}, {"version", version_handler([] { return Parts(); })}};
}

}  // namespace strait::cli
