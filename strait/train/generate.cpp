#include "strait/train/generate.h"

#include <fmt/format.h>

#include <cstring>

#include "strait/base/errors.h"
#include "strait/program/verify.h"
#include "strait/strategy/compose/compose.h"

namespace strait::train {
namespace {

Cluster single_rank() {
  Cluster cluster;
  cluster.name = "one rank";
  cluster.levels = {{"world", 1, 1e9, 0, 1}};
  return cluster;
}

model::Settings settings_of(Dtype dtype, int threads) {
  model::Settings settings;
  settings.dtype = dtype;
  settings.threads = threads;
  settings.training = false;
  return settings;
}

}  // namespace

struct Generator::Compiled {
  program::Program program;
  std::unique_ptr<runtime::Interpreter> interpreter;
};

Generator::Generator(const ModelShape& shape, Dtype dtype, int threads, comm::World& world,
                     const checkpoint::CheckpointReader& reader)
    : dtype_(dtype),
      state_(pool_, 0),
      model_(shape, dtype),
      executor_(model_, settings_of(dtype, threads), {}, 0),
      site_{world, state_, pool_, executor_, nullptr, 120.0} {
  program_for(1);
  const program::Program& program = programs_.at(1)->program;
  std::vector<checkpoint::LoadRequest> requests;
  for (const program::ValueArray& array : program.arrays) {
    if (!array.name.starts_with("w.")) continue;
    runtime::ResidentArray& weights = state_.array(array.name);
    for (int64_t i = 0; i < array.count; ++i) {
      const std::string unit =
          array.name == "w.block" ? fmt::format("blocks.{}", i) : array.name.substr(2);
      requests.push_back({{unit, checkpoint::kMaster, 0, array.partition.elements, dtype},
                          std::span(static_cast<std::byte*>(weights.buffers[i]),
                                    static_cast<size_t>(weights.bytes))});
    }
  }
  reader.load(requests);
}

Generator::~Generator() = default;

Generator::Compiled& Generator::program_for(int64_t tokens) {
  const auto found = programs_.find(tokens);
  if (found != programs_.end()) return *found->second;
  strategy::StepOptions options;
  options.tokens = tokens;
  options.dtype = dtype_;
  auto compiled = std::make_unique<Compiled>();
  compiled->program =
      strategy::compose_generation(model_.shape(), single_rank(), options, context());
  program::verify_or_throw({compiled->program});
  compiled->interpreter = std::make_unique<runtime::Interpreter>(compiled->program, site_);
  return *programs_.emplace(tokens, std::move(compiled)).first->second;
}

std::vector<double> Generator::feed(std::span<const int32_t> tokens) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  if (count == 0 || position_ + count > context())
    throw UserError(fmt::format("cannot feed {} tokens behind {}: the context is {} tokens", count,
                                position_, context()));
  Compiled& compiled = program_for(count);
  std::memcpy(state_.array("prompt." + std::to_string(count)).buffers[0], tokens.data(),
              tokens.size_bytes());
  executor_.set_prompt(1, count, position_, context());
  compiled.interpreter->run(position_);
  position_ += count;
  const int64_t vocabulary = model_.shape().vocabulary;
  const void* logits = state_.array("logits").buffers[0];
  std::vector<double> result(static_cast<size_t>(vocabulary));
  for (int64_t v = 0; v < vocabulary; ++v)
    result[v] = dtype_ == Dtype::kFloat64
                    ? static_cast<const double*>(logits)[v]
                    : static_cast<double>(static_cast<const float*>(logits)[v]);
  return result;
}

void Generator::generate(std::vector<int32_t>& text, int64_t count, const Sampling& sampling,
                         const std::function<void(int32_t)>& each) {
  const int64_t half = std::max<int64_t>(1, context() / 2);
  const auto tail = [&](int64_t length) {
    const int64_t size = static_cast<int64_t>(text.size());
    return std::span<const int32_t>(text).last(static_cast<size_t>(std::min(size, length)));
  };
  reset();
  std::vector<double> logits = feed(tail(context()));
  for (int64_t i = 0; i < count; ++i) {
    text.push_back(sample_token(logits, sampling, static_cast<uint64_t>(i)));
    each(text.back());
    if (i + 1 == count) return;
    if (position_ < context()) {
      logits = feed(tail(1));
    } else {
      reset();
      logits = feed(tail(half));
    }
  }
}

}  // namespace strait::train
