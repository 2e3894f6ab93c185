#include "strait/train/generate.h"

#include <fmt/format.h>

#include "strait/base/errors.h"
#include "strait/base/process_memory.h"
#include "strait/model/tensor_blocks.h"
#include "strait/strategy/compose/compose.h"
#include "strait/train/load_weights.h"
#include "strait/verify/verify.h"

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

Generator::Generator(const ModelShape& shape, const Resources& resources, comm::World& world,
                     const checkpoint::CheckpointReader& reader)
    : dtype_(resources.dtype),
      pool_(resources.device),
      state_(pool_, 0),
      layout_(shape, Mesh({}, 1)),
      model_(layout_.local_shape(), dtype_),
      arithmetic_(device::make_arithmetic(resources.device, resources.threads)),
      environment_{model_, layout_, settings_of(dtype_, resources.threads), *arithmetic_,
                   resources.device != nullptr},
      site_{world, state_, pool_, executors_, nullptr, 120.0} {
  if (resources.device) model::use_tensor_blocks(model_, *resources.device, dtype_);
  execute::add_block_executors(executors_, environment_, {});
  program_for(1);
  load_weights(programs_.at(1)->program, shape, state_, reader, resources.device);
}

Generator::~Generator() = default;

Generator::Compiled& Generator::program_for(int64_t tokens) {
  const auto found = programs_.find(tokens);
  if (found != programs_.end()) return *found->second;
  strategy::StepOptions options;
  options.purpose = strategy::Purpose::kGenerate;
  options.tokens = tokens;
  options.cache_tokens = context();
  options.dtype = dtype_;
  auto compiled = std::make_unique<Compiled>();
  compiled->program =
      strategy::compose(model_.shape(), strategy::whole_placement(), single_rank(), options);
  program::verify_or_throw({compiled->program});
  if (!pool_.device())
    require_room(compiled->program, fmt::format("generation with {} tokens at a time", tokens),
                 tokens > 1 ? "give a shorter prompt" : "the weights alone take most of it",
                 usable_memory_bytes());
  compiled->interpreter = std::make_unique<runtime::Interpreter>(compiled->program, site_);
  return *programs_.emplace(tokens, std::move(compiled)).first->second;
}

std::vector<double> Generator::feed(std::span<const int32_t> tokens) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  if (count == 0 || position_ + count > context())
    throw UserError(fmt::format("cannot feed {} tokens behind {}: the context is {} tokens", count,
                                position_, context()));
  Compiled& compiled = program_for(count);
  if (pool_.device()) model::check_tokens({1, count, tokens.data()}, model_.shape().vocabulary);
  tensor::copy_bytes(pool_.device(), tokens.data(),
                     state_.array("prompt." + std::to_string(count)).buffers[0],
                     static_cast<int64_t>(tokens.size_bytes()));
  state_.write("position", &position_, sizeof(position_));
  compiled.interpreter->run(position_);
  position_ += count;
  const int64_t vocabulary = model_.shape().vocabulary;
  std::vector<std::byte> logits(static_cast<size_t>(vocabulary * dtype_bytes(dtype_)));
  state_.read("logits", logits.data(), static_cast<int64_t>(logits.size()));
  std::vector<double> result(static_cast<size_t>(vocabulary));
  for (int64_t v = 0; v < vocabulary; ++v)
    result[v] = dtype_ == Dtype::kFloat64
                    ? reinterpret_cast<const double*>(logits.data())[v]
                    : static_cast<double>(reinterpret_cast<const float*>(logits.data())[v]);
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
