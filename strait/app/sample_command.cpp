// strait sample: text behind a prompt.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "strait/app/commands.h"
#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/checkpoint/reader.h"
#include "strait/comm/threads/thread_world.h"
#include "strait/config/parse.h"
#include "strait/config/validate.h"
#include "strait/device/blas.h"
#include "strait/shape/modules.h"
#include "strait/shape/shape.h"
#include "strait/tensor/open_device.h"
#include "strait/threads/cores.h"
#include "strait/tokenizer/tokenizer.h"
#include "strait/train/generate.h"

namespace strait::app {
namespace {

Cluster one_rank() { return make_cluster({}, 1); }

[[noreturn]] void refuse(const std::string& flag, const std::string& message,
                         const std::string& file = "") {
  ErrorPlace place;
  place.key = flag;
  if (!file.empty()) place.file = file;
  throw UserError(fmt::format("{} {}", flag, message), place);
}

/// UserError for a flag that changes nothing.
void check_choice(const cli::SampleArguments& given) {
  if (given.temperature > 0) return;
  const cli::SampleArguments defaults;
  const auto useless = [](const char* flag, const std::string& value, const std::string& nearest) {
    refuse(flag, fmt::format("{} has no effect at --temperature 0, which always takes the most "
                             "likely token; the nearest valid choice is {}, or a temperature above "
                             "0",
                             value, nearest));
  };
  if (given.top_k != defaults.top_k) useless("--top-k", std::to_string(given.top_k), "0");
  if (given.top_p != defaults.top_p) useless("--top-p", fmt::format("{}", given.top_p), "1");
  if (given.seed != defaults.seed)
    useless("--seed", std::to_string(given.seed), std::to_string(defaults.seed));
}

void check_top_k(const cli::SampleArguments& given, int64_t vocabulary) {
  if (given.top_k > vocabulary)
    refuse("--top-k", fmt::format("{} is more than the {} tokens of the vocabulary; the nearest "
                                  "valid value is {}",
                                  given.top_k, vocabulary, vocabulary));
}

/// Tokens of the prompt; a single end-of-document token, or token 0, stands for an empty one.
std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, const std::string& prompt,
                                   const std::string& checkpoint) {
  std::vector<int32_t> tokens;
  try {
    tokens = tokenizer.encode(prompt);
  } catch (const UserError& error) {
    refuse("--prompt",
           fmt::format("cannot be said in the tokens of {}: {}", checkpoint, error.what()),
           checkpoint + "/tokenizer.json");
  }
  if (tokens.empty()) tokens.push_back(tokenizer.end_of_document().value_or(0));
  return tokens;
}

}  // namespace

Json sample_command(const cli::Command& command, cli::Output& output) {
  device::require_openblas(device::blas_report());
  check_choice(command.sample);
  const checkpoint::CheckpointReader reader(command.path);
  const Run run = parse_run(reader.read_text("run.toml"), reader.path() + "/run.toml");
  check_keys(run);
  const auto tokenizer =
      parse_tokenizer(reader.read_text("tokenizer.json"), reader.path() + "/tokenizer.json");
  if (run.model.modules) {
    ErrorPlace place;
    place.file = reader.path();
    place.key = "model.family";
    throw UserError(
        fmt::format("{} holds {}, which keeps no key/value cache: strait sample wants one of the "
                    "families {}; the nearest for it is strait evaluate",
                    reader.path(),
                    run.model.modules->from_folder() ? "a chain of modules" : "a U-Net",
                    fmt::join(family_names(), ", ")),
        place);
  }
  const cli::SampleArguments& arguments = command.sample;
  check_top_k(arguments, tokenizer->vocabulary_size());
  std::vector<int32_t> text = prompt_tokens(*tokenizer, arguments.prompt, reader.path());
  const ModelShape shape = model_shape(run.model, tokenizer->vocabulary_size());
  checkpoint::require_same_units(reader.manifest(), checkpoint::unit_records(shape), reader.path());
  // Trained on a device: sampled there where this machine has one.
  const bool on_device = run.runtime.device == "cuda" && tensor::num_cuda_devices() > 0;
  const auto device = on_device ? tensor::open_device("cuda") : nullptr;
  comm::ThreadWorldOptions options;
  options.device = device.get();
  const auto worlds = comm::make_thread_worlds(1, one_rank(), options);
  const int threads = static_cast<int>(available_cores());
  const Dtype dtype = run.train.precision == "fp64" ? Dtype::kFloat64 : Dtype::kFloat32;
  train::Generator generator(shape, {dtype, threads, device.get()}, worlds->world(0), reader);
  reader.verify_share(0, 1);
  const train::Sampling sampling{arguments.temperature, arguments.top_k, arguments.top_p,
                                 static_cast<uint64_t>(arguments.seed),
                                 tokenizer->vocabulary_size()};
  const size_t given = text.size();
  const double began = now_seconds();
  generator.generate(text, arguments.tokens, sampling, [](int32_t) {});
  const double seconds = now_seconds() - began;
  const std::string continuation = tokenizer->decode(std::span<const int32_t>(text).subspan(given));
  output.line(arguments.prompt + continuation);
  return Json::object({{"path", reader.path()},
                       {"prompt", arguments.prompt},
                       {"text", continuation},
                       {"tokens", static_cast<int64_t>(text.size() - given)},
                       {"tokens_per_second", static_cast<double>(text.size() - given) / seconds}});
}

}  // namespace strait::app
