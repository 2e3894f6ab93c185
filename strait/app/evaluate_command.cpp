// strait evaluate: the validation loss of a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "strait/app/commands.h"
#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/config/check_chain.h"
#include "strait/config/parse.h"
#include "strait/config/place.h"
#include "strait/config/validate.h"
#include "strait/device/blas.h"
#include "strait/shape/modules.h"
#include "strait/threads/cores.h"
#include "strait/tokenizer/tokenizer.h"
#include "strait/train/evaluate.h"

namespace strait::app {
namespace {

/// Keys of the checkpoint's run file that an evaluation takes up.
bool takes_effect(const std::string& key) {
  return (key.starts_with("data.") && key != "data.tokenizer") || key == "evaluation.batches" ||
         key == "train.micro_batch_size" || key == "model.path";
}

void check_sets(const std::vector<std::string>& sets) {
  for (const std::string& set : sets) {
    const std::string key = set.substr(0, set.find('='));
    if (takes_effect(key)) continue;
    ErrorPlace place;
    place.key = key;
    throw UserError(
        fmt::format("--set {} has no effect on an evaluation, which takes the keys of "
                    "[data] but the tokenizer, evaluation.batches, "
                    "train.micro_batch_size and model.path; the nearest is data.path=FILE",
                    set),
        place);
  }
}

/// The run that saved the checkpoint, with `sets` over it.
Run evaluated_run(const checkpoint::CheckpointReader& reader,
                  const std::vector<std::string>& sets) {
  check_sets(sets);
  Run run = parse_run(reader.read_text("run.toml"), reader.path() + "/run.toml", sets);
  check_keys(run);
  require_data(run);
  check_images(run);
  return run;
}

Corpus corpus_of(const Run& run, const checkpoint::CheckpointReader& reader) {
  std::shared_ptr<const Tokenizer> tokenizer =
      parse_tokenizer(reader.read_text("tokenizer.json"), reader.path() + "/tokenizer.json");
  return with_place(
      run, [&] { return make_corpus(run.data, tokenizer, static_cast<int>(available_cores())); });
}

/// As many windows at a time as a rank of the training took sequences.
train::ValidationPlan plan_of(const Run& run, const checkpoint::Manifest& manifest,
                              const ValidationWindows& validation) {
  train::ValidationPlan plan;
  plan.windows = train::evaluated_windows(validation, run);
  const int64_t share = std::max<int64_t>(1, train::windows_of_batch(run) / manifest.ranks);
  plan.micro_batch = run.train.micro_batch_size > 0 ? run.train.micro_batch_size : share;
  if (plan.windows > 0) return plan;
  ErrorPlace place;
  place.key = "data.validation_share";
  throw UserError(
      fmt::format("{} has no validation part: fewer than two tokens are left at "
                  "data.validation_share = {}; the nearest valid choice is 0.5, or more text",
                  run.data.path, run.data.validation_share),
      place);
}

}  // namespace

Json evaluate_command(const cli::Command& command, cli::Output& output) {
  device::require_openblas(device::blas_report());
  const checkpoint::CheckpointReader reader(command.path);
  const Run run = evaluated_run(reader, command.sets);
  const Corpus corpus = corpus_of(run, reader);
  const ModelShape shape = model_shape(run.model, corpus.tokenizer->vocabulary_size());
  checkpoint::require_same_units(reader.manifest(), checkpoint::unit_records(shape), reader.path());
  const ValidationWindows validation(corpus, run.model.shape.context);
  train::EvaluationJob job{reader, shape, validation, plan_of(run, reader.manifest(), validation)};
  job.dtype = run.train.precision == "fp64" ? Dtype::kFloat64 : Dtype::kFloat32;
  job.threads = static_cast<int>(available_cores());
  job.seed = run.seed;
  job.documents = corpus.validation.has_documents();
  const double began = now_seconds();
  const double loss = train::evaluate_checkpoint(job);
  const double seconds = now_seconds() - began;
  const double bits = bits_per_byte(loss, validation.scored(job.plan.windows));
  const int64_t tokens = job.plan.windows * run.model.shape.context;
  output.line(fmt::format("{}: step {}, {} windows of {}", reader.path(), reader.manifest().step,
                          job.plan.windows, corpus.source));
  const std::string unit = loss_unit(run.model);
  const double perplexity = unit == loss_unit({}) ? std::exp(loss) : std::nan("");
  output.line(fmt::format("validation loss {:.4f} {}", loss, unit) +
              (std::isfinite(bits) ? fmt::format(", {:.3f} bits per byte", bits) : "") +
              (std::isfinite(perplexity) ? fmt::format(", perplexity {:.4g}", perplexity) : ""));
  return Json::object({{"path", reader.path()},
                       {"step", reader.manifest().step},
                       {"data", corpus.source},
                       {"windows", job.plan.windows},
                       {"precision", dtype_name(job.dtype)},
                       {"validation_loss", loss},
                       {"validation_bits_per_byte", bits},
                       {"perplexity", perplexity},
                       {"seconds", seconds},
                       {"tokens_per_second", static_cast<double>(tokens) / seconds}});
}

}  // namespace strait::app
