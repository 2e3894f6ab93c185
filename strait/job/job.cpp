#include "strait/job/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/json.h"
#include "strait/base/process_memory.h"
#include "strait/checkpoint/module_weights.h"
#include "strait/codec/borders.h"
#include "strait/config/keys.h"
#include "strait/config/place.h"
#include "strait/config/print.h"
#include "strait/config/products.h"
#include "strait/config/validate.h"
#include "strait/data/empty_sequences.h"
#include "strait/device/blas.h"
#include "strait/device/require_codec.h"
#include "strait/job/memory_check.h"
#include "strait/job/thread_check.h"
#include "strait/model/block.h"
#include "strait/predict/predict.h"
#include "strait/shape/ends.h"
#include "strait/tensor/open_device.h"
#include "strait/threads/cores.h"

namespace strait {
namespace {

/// The tokenizer of the checkpoint, so that tokens keep their meaning; none when starting anew.
std::shared_ptr<const Tokenizer> stored_tokenizer(const checkpoint::CheckpointReader* reader) {
  if (reader == nullptr || !reader->has_file("tokenizer.json")) return nullptr;
  return parse_tokenizer(reader->read_text("tokenizer.json"), reader->path() + "/tokenizer.json");
}

}  // namespace

namespace {

RunFolder folder_of(const Run& run, const OnLead& on_lead) {
  std::unique_ptr<LockFile> lock;
  const std::string text = on_lead([&] {
    RunFolder folder = prepare_run_folder(run);
    lock = std::move(folder.lock);
    const auto& best = folder.best_validation_loss;
    return Json::object({{"path", folder.path},
                         {"checkpoint", folder.checkpoint.value_or("")},
                         {"best_validation_loss", best ? Json(*best) : Json()}})
        .dump();
  });
  const Json agreed = Json::parse(text, "the run folder of rank 0");
  RunFolder folder{agreed.at("path").as_string(), std::nullopt, std::nullopt, std::move(lock)};
  const Json& best = agreed.at("best_validation_loss");
  if (!best.is_null()) folder.best_validation_loss = best.as_number();
  const std::string& checkpoint = agreed.at("checkpoint").as_string();
  if (!checkpoint.empty()) folder.checkpoint = checkpoint;
  return folder;
}

}  // namespace

namespace {

[[noreturn]] void refuse_on_device(const char* key, const std::string& message) {
  ErrorPlace place;
  place.key = key;
  throw UserError(message, place);
}

/// What would be found out only in the middle of a step.
void check_device(const Job& job) {
  if (!job.device) return;
  if (job.design.run.runtime.deterministic)
    refuse_on_device(
        "runtime.deterministic",
        "runtime.deterministic cannot be held on a device: LibTorch's attention adds in any order; "
        "the nearest valid choice is false, or runtime.device = \"cpu\"");
  if (is_shared(job.design.layout.local_shape()) || job.design.layout.local_shape().sequence > 1)
    refuse_on_device("runtime.device",
                     "ranks share blocks by their segments, and the blocks of a device are one "
                     "piece; the nearest valid choice is runtime.device = \"cpu\", or "
                     "mesh.axes.x = 1, y = 1 and sequence = 1");
  if (codec::is_low_rank(codec::parse_codec(job.design.run.compression.codec)))
    refuse_on_device(
        "compression.codec",
        "factors of low rank are computed on plain memory; the nearest valid choice is "
        "compression.codec = \"qsgd4\", or runtime.device = \"cpu\"");
  for (const program::Program& step : job.design.steady())
    program::for_each_op(step.body, [](const program::Op& op) {
      const auto require = [](const codec::CodecSpec& spec, const char* key) {
        if (spec.block > 0 || codec::is_of_layers(spec)) device::require_tensor_codec(spec, key);
      };
      if (!codec::is_runs(op.codec))
        return require(codec::parse_bordered(op.codec).codec, "placement.codecs");
      for (const codec::Run& run : codec::parse_runs(op.codec).runs)
        require(run.codec, "compression.codec");
    });
}

/// A chain of modules or a U-Net; of the former, whether the folder holds what its manifest states,
/// and what that is.
std::string check_chain(const Job& job) {
  const ModelShape& shape = job.design.shape;
  if (!shape.modules) return "";
  if (job.device)
    refuse_on_device("runtime.device",
                     fmt::format("{} on the processor; the nearest valid choice is "
                                 "runtime.device = \"cpu\"",
                                 shape.modules->from_folder() ? "modules run" : "a U-Net runs"));
  if (!shape.modules->from_folder()) return "";
  const checkpoint::ModuleWeights weights(*shape.modules);
  const model::Model model(shape, job.design.dtype);
  return checkpoint::ModuleWeights::hash(*shape.modules);
}

/// The best checkpoint is known by its validation loss.
void require_validation(const Job& job) {
  if (!job.design.run.checkpoint.keep_best || job.validation->windows() > 0) return;
  refuse_key(job.design.run, "checkpoint.keep_best",
             "checkpoint.keep_best = true cannot take effect: the validation part has fewer than "
             "two tokens; the nearest valid value is false");
}

/// Writes the resolved run file; not over that of a run which has reached its last step. True = the
/// latter.
bool record_run(const Job& job, const OnLead& on_lead) {
  const Run& run = job.design.run;
  const bool at_end = job.resume && job.resume->manifest().step >= run.train.steps;
  const std::string path = job.folder.path + "/run.toml";
  const std::string stands = on_lead([&] {
    if (at_end && std::filesystem::exists(path)) return std::string("stands");
    Run resolved = run;
    resolved.output.run_dir = job.folder.path;
    write_file_atomically(path, print_run(resolved));
    return std::string();
  });
  return !stands.empty();
}

/// Ranks that share this computer's memory.
std::vector<int64_t> ranks_here(int64_t ranks, const Surroundings& surroundings) {
  std::vector<int64_t> here;
  for (const auto& [rank, cores] : surroundings.usable_cores) here.push_back(rank);
  for (int64_t rank = 0; surroundings.usable_cores.empty() && rank < ranks; ++rank)
    here.push_back(rank);
  return here;
}

Binding bind_ranks(const strategy::Design& design, const Surroundings& surroundings) {
  BindRequest request{design.run.runtime.bind, design.batch.threads_per_rank,
                      surroundings.usable_cores};
  if (request.usable.empty())
    for (int64_t rank = 0; rank < design.batch.ranks; ++rank) request.usable[rank] = usable_cores();
  return choose_binding(request, request.kind == "none" ? std::nullopt : read_core_tree());
}

void open_training(Job& job) {
  const Run& run = job.design.run;
  const int64_t context = run.model.shape.context, tokens = run.train.global_batch_tokens;
  if (tokens == 0)
    job.loader = std::make_unique<SequenceLoader>(*job.corpus, context, run.seed);
  else
    job.documents = std::make_unique<TokenBatches>(*job.corpus, context, tokens, run.seed);
}

/// A step in which no token counts changes nothing, which all have to know before they update.
void check_empty_batches(const Job& job) {
  const Run& run = job.design.run;
  const bool local = job.design.policy.local_steps();
  if (!run.optimizer.in_backward && !local) return;
  const int64_t context = run.model.shape.context;
  const bool empty = job.documents ? job.documents->may_be_empty()
                                   : may_have_empty_sequences(job.corpus->training, context);
  if (!empty) return;
  const std::string batches =
      job.documents
          ? fmt::format("a batch of train.global_batch_tokens = {}", run.train.global_batch_tokens)
          : fmt::format("a sequence of model.shape.context = {}", context);
  if (local)
    refuse_key(run, "sync.policy",
               fmt::format("sync.policy = {} cannot take effect: {} may lie in documents of one "
                           "token, where nothing counts, and replicas that leave out different "
                           "steps would count them differently; the nearest valid value is "
                           "\"every-step\", or a longer context",
                           toml_string(run.sync.policy), batches));
  refuse_key(run, "optimizer.in_backward",
             fmt::format("optimizer.in_backward = true updates weights before it is known whether "
                         "any token counts, and {} may lie in documents of one token, where none "
                         "does; the nearest valid value is false, or a longer context",
                         batches));
}

/// Of a sequence in which a token attends to as many as in those of the run, on average.
int64_t attended_length(const strategy::Design& design) {
  const int64_t documents = design.shape.document_tokens;
  return documents > 0 ? documents : design.run.model.shape.context;
}

}  // namespace

Job make_job(const Run& run, int64_t ranks, const OnLead& on_lead,
             const Surroundings& surroundings) {
  if (surroundings.usable_cores.empty()) require_threads(ranks, thread_limit());
  validate_run(run, ranks);
  require_data(run);
  device::require_openblas(device::blas_report());
  Job job;
  job.device = surroundings.device
                   ? surroundings.device
                   : tensor::open_device(run.runtime.device, surroundings.device_index);
  const int cores = static_cast<int>(available_cores());
  OpenData data = with_place(run, [&] { return open_data(run.data); });
  // A new run's folder is made last: nothing is left on disk by a run that cannot start.
  const bool resuming = run.checkpoint.resume != "never";
  if (resuming) job.folder = folder_of(run, on_lead);
  if (job.folder.checkpoint)
    job.resume = std::make_unique<checkpoint::CheckpointReader>(*job.folder.checkpoint);
  const std::shared_ptr<const Tokenizer> tokenizer = stored_tokenizer(job.resume.get());
  job.corpus = with_place(run, [&] {
    return std::make_unique<const Corpus>(make_corpus(std::move(data), run.data, tokenizer, cores));
  });
  job.design = strategy::make_design(run, ranks, job.corpus->tokenizer->vocabulary_size(),
                                     surroundings.cores_per_rank * ranks, job.corpus.get());
  job.design.run.runtime.chosen = chosen_products(run);
  job.binding = bind_ranks(job.design, surroundings);
  check_device(job);
  job.modules_hash = check_chain(job);
  if (!job.device)
    job.spare_memory_bytes =
        require_memory(job.design, ranks_here(ranks, surroundings), usable_memory_bytes());
  with_place(run, [&] { open_training(job); });
  check_empty_batches(job);
  job.validation = std::make_unique<ValidationWindows>(*job.corpus, run.model.shape.context);
  require_validation(job);
  job.data_hash = data_hash(*job.corpus);
  if (job.resume)
    job.changes = check_resume(job.design, *job.corpus, job.modules_hash, *job.resume);
  job.simulated = predict::simulate(job.design);
  job.cost = predict::price(job.design);
  job.model_flops_per_token = model_flops_per_token(job.design.shape, attended_length(job.design));
  job.peak_flops_per_second =
      static_cast<double>(ranks) * job.design.cluster.flops_per_second(job.design.dtype);
  if (!resuming) job.folder = folder_of(run, on_lead);
  job.finished = record_run(job, on_lead);
  return job;
}

}  // namespace strait
