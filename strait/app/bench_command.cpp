// strait probe and strait bench.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "strait/app/bench_processes.h"
#include "strait/app/commands.h"
#include "strait/app/signals.h"
#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/process_memory.h"
#include "strait/bench/bench.h"
#include "strait/bench/bench_checkpoint.h"
#include "strait/bench/bench_codec.h"
#include "strait/bench/bench_collective.h"
#include "strait/bench/bench_step.h"
#include "strait/bench/breakdown.h"
#include "strait/cli/plan_text.h"
#include "strait/config/parse.h"
#include "strait/config/place.h"
#include "strait/job/thread_check.h"
#include "strait/kernel/product_choice.h"
#include "strait/predict/predict.h"
#include "strait/probe/machine_rates.h"
#include "strait/probe/probe.h"
#include "strait/threads/cores.h"
#include "strait/train/solo_step.h"

namespace strait::app {
namespace {

constexpr int64_t kGpt2Vocabulary = 50257;
constexpr int64_t kCharVocabulary = 65;  // of tiny Shakespeare, as nanoGPT trains on it
constexpr double kTwinTolerance = 1e-4;  // relative difference of fp32 and fp64 loss
constexpr double kNarrowTolerance =
    0x1p-8;  // of bf16: one rounding, the errors of the sums average out

Dtype dtype_of(const std::string& name, std::initializer_list<Dtype> choices) {
  std::vector<std::string> names;
  for (const Dtype dtype : choices) {
    names.push_back(dtype_name(dtype));
    if (name == dtype_name(dtype)) return dtype;
  }
  throw UserError(fmt::format("--dtype {} is not available here; nearest: {}", name,
                              nearest_choice(name, names)));
}

kernel::NarrowProducts measured_choice(const kernel::ProductRequest& request) {
  return kernel::choose_products(request, kernel::own_multipliers(),
                                 kernel::measured_product_seconds())
      .products;
}

/// What multiplies: by name, or measured. kAutomatic where there is nothing to choose from.
kernel::NarrowProducts products_of(const cli::Command& command, Dtype type) {
  const std::string flag = "--products";
  const auto asked = kernel::product_named(cli::case_text(command, "products", "auto"), flag);
  if (type == Dtype::kFloat64 && asked == kernel::NarrowProducts::kAutomatic) return asked;
  if (!kernel::suits(asked, type))
    refuse_flag(flag,
                fmt::format("--products {} cannot take effect: that does not multiply {}; the "
                            "nearest valid choice is auto",
                            kernel::product_name(asked), dtype_name(type)));
  return measured_choice({asked, false, flag, type});
}

/// The number of threads that a case names, else all cores.
int64_t threads_of(const cli::Command& command) {
  constexpr int64_t kMost = 4096;  // as runtime.threads_per_rank
  const int64_t threads = cli::case_number(command, "threads", available_cores());
  if (threads > kMost)
    refuse_flag("--threads",
                fmt::format("--threads {}: the nearest valid value is {}", threads, kMost));
  return threads;
}

/// NothingFits, when a case needs more than this process may have.
void require_case_memory(const std::string& what, double needs, const std::string& hint) {
  require_memory_bytes("bench " + what, static_cast<int64_t>(std::min(needs, 9e18)),
                       usable_memory_bytes(), hint);
}

/// How often `bytes` go into what this process may have.
int64_t would_fit(double bytes) {
  return static_cast<int64_t>(static_cast<double>(usable_memory_bytes()) / bytes);
}

/// Operands and results of both engines.
void require_gemm_memory(const measure::GemmShape& shape, Dtype dtype) {
  const auto m = static_cast<double>(shape.m), n = static_cast<double>(shape.n),
             k = static_cast<double>(shape.k);
  const double element = static_cast<double>(2 * dtype_bytes(dtype));
  require_case_memory(
      fmt::format("gemm --m {} --n {} --k {}", shape.m, shape.n, shape.k),
      element * (m * k + k * n + m * n),
      fmt::format("--m {0} --n {0} --k {0} would fit",
                  static_cast<int64_t>(std::sqrt(static_cast<double>(would_fit(3 * element))))));
}

measure::BenchRow gemm_row(const cli::Command& command) {
  const measure::GemmShape shape{cli::case_number(command, "m", 1024),
                                 cli::case_number(command, "n", 1024),
                                 cli::case_number(command, "k", 1024)};
  const Dtype dtype = dtype_of(cli::case_text(command, "dtype", "fp32"),
                               {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16});
  require_gemm_memory(shape, dtype);
  return measure::bench_gemm(shape, dtype, threads_of(command), {}, products_of(command, dtype));
}

/// What each rank sends and receives, and with processes the same again for the peer.
void require_collective_memory(const measure::CollectiveCase& collective) {
  const double vectors =
      (collective.backend == "mpi" ? 4.0 : 2.0) * static_cast<double>(collective.ranks);
  require_case_memory(
      fmt::format("collective --ranks {} --bytes {}", collective.ranks, collective.vector_bytes()),
      vectors * static_cast<double>(collective.vector_bytes()),
      fmt::format("--bytes {} would fit", would_fit(vectors)));
}

measure::CollectiveCase collective_case(const cli::Command& command) {
  measure::CollectiveCase collective;
  collective.operation = cli::case_text(command, "operation", collective.operation);
  collective.backend = cli::case_text(command, "backend", collective.backend);
  collective.ranks = cli::case_number(command, "ranks", collective.ranks);
  if (command.case_keys.contains("bytes")) collective.bytes = cli::case_number(command, "bytes", 0);
  collective.dtype =
      dtype_of(cli::case_text(command, "dtype", "fp32"), {Dtype::kFloat32, Dtype::kFloat64});
  collective.codec = cli::case_text(command, "codec", collective.codec);
  require_threads(collective.ranks, thread_limit());
  require_collective_memory(collective);
  return collective;
}

/// The numbers, their piece and their result.
void require_codec_memory(const measure::CodecCase& codec) {
  const double element = 3.0 * static_cast<double>(dtype_bytes(codec.dtype));
  require_case_memory(fmt::format("codec --elements {}", codec.elements),
                      element * static_cast<double>(codec.elements),
                      fmt::format("--elements {} would fit", would_fit(element)));
}

measure::CodecCase codec_case(const cli::Command& command) {
  measure::CodecCase codec;
  codec.codec = cli::case_text(command, "codec", codec.codec);
  codec.direction = cli::case_text(command, "direction", codec.direction);
  codec.elements = cli::case_number(command, "elements", codec.elements);
  codec.dtype = dtype_of(cli::case_text(command, "dtype", "fp32"),
                         {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat64});
  if (const size_t suffix = codec.codec.find("+ef"); suffix != std::string::npos)
    refuse_flag("--codec", fmt::format("--codec {}: error feedback is not timed; the nearest valid "
                                       "choice is {}",
                                       codec.codec, codec.codec.substr(0, suffix)));
  require_codec_memory(codec);
  return codec;
}

std::vector<measure::BenchRow> checkpoint_rows(const cli::Command& command) {
  measure::CheckpointCase checkpoint;
  checkpoint.ranks = cli::case_number(command, "ranks", checkpoint.ranks);
  checkpoint.bytes = cli::case_number(command, "bytes", checkpoint.bytes);
  checkpoint.folder = cli::case_text(command, "folder", checkpoint.folder);
  require_threads(checkpoint.ranks, thread_limit());
  require_case_memory(fmt::format("checkpoint --bytes {}", checkpoint.bytes),
                      2 * static_cast<double>(checkpoint.bytes),
                      fmt::format("--bytes {} would fit", would_fit(2)));
  std::vector<measure::BenchRow> rows;
  int signal = 0;
  {
    const StopSignals signals;
    rows = measure::bench_checkpoint(checkpoint, {}, &signals.received());
    signal = signals.received().load();
  }
  if (signal != 0) end_by(signal);
  return rows;
}

Run step_run(const measure::StepCase& step) {
  Run run;
  run.model = model_preset(step.model);
  run.model.shape.context = step.context;
  run.train.global_batch_size = step.micro_batch_size;
  run.train.precision = step.precision;
  run.train.clip_norm = 0;
  run.runtime.threads_per_rank = step.threads;
  run.runtime.chosen.products = step.products;
  return run;
}

/// The case in the precision that its loss is compared with.
measure::StepCase twin_of(measure::StepCase step) {
  step.precision = step.precision == "bf16" ? "fp32" : "fp64";
  return step;
}

/// The step, and the twin that verifies it.
void require_step_memory(const measure::StepCase& step) {
  const auto peak = [&](const measure::StepCase& one) {
    const strategy::Design design = strategy::make_design(step_run(one), 1, one.vocabulary);
    return static_cast<double>(predict::peak_memories(design).front().total());
  };
  require_case_memory(
      fmt::format("step --model {} --micro-batch-size {} --context {} --vocabulary {}", step.model,
                  step.micro_batch_size, step.context, step.vocabulary),
      peak(step) + (step.precision == "fp64" ? 0 : peak(twin_of(step))),
      "a smaller --model, --micro-batch-size or --context may fit");
}

/// The loss of the first batch against the same weights in fp64 (of bf16 in fp32), and against
/// itself after the steps.
std::string verify_step(train::SoloStep& solo, const measure::StepCase& step, int64_t vocabulary) {
  const double before = solo.loss();
  if (step.precision != "fp64") {
    const bool narrow = step.precision == "bf16";
    const measure::StepCase twin = twin_of(step);
    const double exact = train::SoloStep(step_run(twin), vocabulary).loss();
    if (!(std::abs(before - exact) <= (narrow ? kNarrowTolerance : kTwinTolerance) * exact))
      return fmt::format("the loss is {}, in {} {}", before, twin.precision, exact);
  }
  solo.step();
  const double after = solo.loss();
  return after < before
             ? ""
             : fmt::format("a step on the same batch moved the loss from {} to {}", before, after);
}

/// Where the program is installed, or built in a folder of its sources; "" if it is nowhere.
std::string peer_script(const std::string& family) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* folder : {"../share/strait/peers", "../../bench/peers"})
    if (const auto script = program / folder / (family + "_torch.py");
        std::filesystem::exists(script))
      return script.lexically_normal();
  return "";
}

/// The step in PyTorch, eager and, where it can be, compiled.
void add_torch_peers(const measure::StepCase& step, const ModelShape& shape,
                     const std::string& python, std::vector<measure::Contender>& peers) {
  measure::TorchPeerOptions options{.python = python, .script = peer_script(shape.family)};
  peers.push_back(measure::torch_step_peer(step, shape, options));
  if (peers.back().version.empty() || peers.back().version.starts_with("1.")) return;
  options.compiled = true;
  peers.push_back(measure::torch_step_peer(step, shape, options));
}

Dtype precision_of(const std::string& name) {
  return dtype_of(name, {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16});
}

/// The kernels of a few more steps against the rates of this machine.
Json step_breakdown(train::SoloStep& solo, trace::Recorder& recorder,
                    const measure::StepCase& step) {
  constexpr int64_t kSteps = 5;
  const Dtype dtype = precision_of(step.precision);
  const MeasuredRates core = measure::measure_rates(dtype, step.threads, step.products);
  const double threads = static_cast<double>(step.threads);
  const double flops = dtype == Dtype::kFloat32   ? core.flops_per_second_fp32
                       : dtype == Dtype::kFloat64 ? core.flops_per_second_fp64
                                                  : core.flops_per_second_bf16;
  recorder.record_all(true);
  double seconds = 0;
  for (int64_t at = 0; at < kSteps; ++at) seconds += solo.step().seconds / kSteps;
  recorder.record_all(false);
  return measure::breakdown_json(
      measure::kernel_times(program::class_of(solo.design().steady(), 0), recorder, kSteps,
                            {threads * flops, threads * core.memory_bytes_per_second}),
      seconds);
}

void print_breakdown(const Json& rows, cli::Output& output) {
  for (const Json& row : rows.as_array()) {
    const Json& share = row.at("bound_share");
    output.line(fmt::format(
        "  {:<18} {:>10} {:>6.1f} % of the step{}", row.at("kernel").as_string(),
        cli::seconds_text(row.at("seconds").as_number()), 100 * row.at("share").as_number(),
        share.is_null() ? "" : fmt::format(", bound {:.0f} % of it", 100 * share.as_number())));
  }
}

measure::BenchRow step_row(const cli::Command& command) {
  measure::StepCase step;
  step.model = cli::case_text(command, "model", step.model);
  if (const std::string family = model_preset(step.model).family; !is_family(family))
    refuse_flag("--model", fmt::format("--model {}: family {} has no step of linear layers to be "
                                       "compared with; the nearest valid choice is {}",
                                       step.model, family, measure::StepCase().model));
  step.micro_batch_size = cli::case_number(command, "micro_batch_size", step.micro_batch_size);
  step.context = cli::case_number(command, "context", step.context);
  step.precision = cli::case_text(command, "precision", step.precision);
  step.threads = threads_of(command);
  step.products = products_of(command, precision_of(step.precision));
  step.vocabulary = cli::case_number(command, "vocabulary",
                                     step.model == "nano-char" ? kCharVocabulary : kGpt2Vocabulary);
  if (step.vocabulary == 1)
    refuse_flag("--vocabulary",
                "--vocabulary 1: a vocabulary of one token leaves nothing to learn; the nearest "
                "valid value is 2");
  constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();
  if (step.vocabulary > kMostTokens)
    refuse_flag("--vocabulary", fmt::format("--vocabulary {}: a token is a number of 32 bits; the "
                                            "nearest valid value is {}",
                                            step.vocabulary, kMostTokens));
  require_step_memory(step);
  trace::Recorder recorder;
  train::SoloStep solo(step_run(step), step.vocabulary, nullptr, &recorder);
  const measure::StepSubject subject{[&] { return verify_step(solo, step, step.vocabulary); },
                                     [&] { return solo.step().seconds; }};
  const std::string python =
      cli::case_text(command, "peer_python", measure::TorchPeerOptions().python);
  const measure::ThreadLimit limit(step.threads);
  std::vector<measure::Contender> peers;
  add_torch_peers(step, solo.design().shape, python, peers);
  if (step.precision == "bf16") {
    measure::StepCase wide = step;
    wide.precision = "fp32";
    add_torch_peers(wide, solo.design().shape, python, peers);
  }
  measure::BenchRow row = measure::bench_step(step, solo.design().shape, subject, peers);
  if (row.failure.empty() && cli::case_text(command, "breakdown", "off") == "on")
    row.breakdown = step_breakdown(solo, recorder, step);
  return row;
}

void print_row(const measure::BenchRow& row, cli::Output& output) {
  output.line(row.bench_case.dump());
  if (!row.failure.empty()) return output.line("  FAILED: " + row.failure);
  output.line(fmt::format("  {} median of {} ({} to {}), {:.4g} {}",
                          cli::seconds_text(row.seconds->median), row.seconds->count,
                          cli::seconds_text(row.seconds->min), cli::seconds_text(row.seconds->max),
                          row.work / row.seconds->median, row.rate_unit));
  if (row.bound)
    output.line(fmt::format("  {} {}: {} = {:.0f} % of our time",
                            row.share() > 1 ? "reference, passed and so no bound," : "bound",
                            row.bound->name, cli::seconds_text(row.bound->seconds),
                            100 * row.share()));
  if (!row.breakdown.is_null()) print_breakdown(row.breakdown, output);
  for (const measure::BenchPeer& peer : row.peers) {
    if (peer.seconds)
      output.line(fmt::format("  peer {} {}: {}, ours is {:.2f} times as fast", peer.name,
                              peer.version, cli::seconds_text(peer.seconds->median),
                              peer.seconds->median / row.seconds->median));
    else
      output.line(fmt::format("  peer {}: missing: {}", peer.name, peer.missing));
  }
}

}  // namespace

Json bench_command(const cli::Command& command, cli::Output& output) {
  if (command.subject == "collective" && cli::case_text(command, "backend", "threads") == "mpi")
    return bench_processes(command, collective_case(command), output, print_row);
  measure::BenchReport report;
  report.subject = command.subject;
  if (command.subject == "gemm")
    report.rows.push_back(gemm_row(command));
  else if (command.subject == "collective")
    report.rows.push_back(measure::bench_collective(collective_case(command)));
  else if (command.subject == "codec")
    report.rows = measure::bench_codec(codec_case(command));
  else if (command.subject == "checkpoint")
    report.rows = checkpoint_rows(command);
  else
    report.rows.push_back(step_row(command));
  for (const measure::BenchRow& row : report.rows) print_row(row, output);
  output.partial() = measure::bench_report_to_json(report);
  if (!report.verified())
    throw InternalError("the result of the benchmark is wrong: " + report.rows.front().failure);
  return measure::bench_report_to_json(report);
}

Json probe_command(const cli::Command& command, cli::Output& output) {
  measure::ProbeOptions options;
  if (command.ranks) options.ranks = *command.ranks;
  require_threads(options.ranks, thread_limit());
  if (!command.path.empty()) {
    options.run = load_run(command.path, command.sets);
  } else if (!command.sets.empty()) {
    refuse_flag("--set", fmt::format("--set {} is a key of a run file, and none is given; nearest "
                                     "valid choice: strait probe RUN.toml --set {}",
                                     command.sets.front(), command.sets.front()));
  }
  options.products = measured_choice({.type = Dtype::kBfloat16});
  options.wide_products = measured_choice({.type = Dtype::kFloat32});
  bool lead = true;
  const measure::ProbeResult result = with_place(options.run.value_or(Run()), [&] {
    return probe_ranks(options, command.output, output, lead);
  });
  const Cluster cluster = measure::probe_cluster(result);
  if (lead) {
    write_file_atomically(command.output, measure::render_cluster_file(result));
    output.line(fmt::format(
        "wrote {}: {} ranks x {} threads, {:.1f} GFLOP/s fp32 and {:.1f} GB/s of copies per rank",
        command.output, result.ranks, result.threads_per_rank, result.fp32_flops_per_second / 1e9,
        result.memcpy_bytes_per_second / 1e9));
    for (const Level& level : cluster.levels)
      output.line(fmt::format("level {}: {} groups inside, {:.4g} GB/s into each and {}",
                              level.name, level.size, level.bytes_per_second / 1e9,
                              cli::seconds_text(level.latency_seconds)));
  }
  return Json::object(
      {{"cluster_file", command.output},
       {"ranks", result.ranks},
       {"threads_per_rank", result.threads_per_rank},
       {"block", result.block},
       {"fp32_flops_per_second", result.fp32_flops_per_second},
       {"fp64_flops_per_second", result.fp64_flops_per_second},
       {"bf16_flops_per_second",
        result.bf16_flops_per_second ? Json(*result.bf16_flops_per_second) : Json()},
       {"fp32_attention_flops_per_second", result.fp32_attention_flops_per_second},
       {"fp64_attention_flops_per_second", result.fp64_attention_flops_per_second},
       {"bf16_attention_flops_per_second", result.bf16_attention_flops_per_second},
       {"fp32_model_flops_per_second", result.fp32_model_flops_per_second},
       {"bf16_model_flops_per_second", result.bf16_model_flops_per_second},
       {"fp32_weights_per_second", result.fp32_weights_per_second},
       {"bf16_weights_per_second", result.bf16_weights_per_second},
       {"memory_bytes_per_second", cluster.memory_bytes_per_second},
       {"memory_bytes", result.memory_bytes},
       {"transport_bytes_per_second", result.transport_bytes_per_second},
       {"transport_latency_seconds", result.transport_latency_seconds}});
}

}  // namespace strait::app
