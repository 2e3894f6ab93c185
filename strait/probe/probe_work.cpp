#include "strait/probe/probe_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "strait/base/errors.h"
#include "strait/config/check_chain.h"
#include "strait/config/validate.h"
#include "strait/draft/step_options.h"
#include "strait/program/program.h"
#include "strait/shape/shape.h"
#include "strait/strategy/compose/design.h"

namespace strait::measure {
namespace {

constexpr int64_t kHeadWidth = 64;
constexpr int64_t kMostContext = 1024, kLeastContext = 16;
constexpr double kSeen = 1e-3;  // of a block's seconds
constexpr int64_t kFewer = 4;   // times fewer tokens tell what weights take
constexpr const char* kCodecs[] = {"int8/2048", "int4/128"};  // of zero++ and zero-topo

}  // namespace

BlockCase block_of_width(int64_t width) {
  BlockCase block;
  block.run.model = model_preset("nano-char");
  ShapeOptions& shape = block.run.model.shape;
  shape.layers = 1;
  shape.heads = shape.kv_heads = std::max<int64_t>(1, width / kHeadWidth);
  shape.width = std::max<int64_t>(16, width / shape.heads / 2 * 2 * shape.heads);
  shape.ffn_width = 4 * shape.width;
  shape.context = std::min<int64_t>(128, shape.width);
  block.run.train.global_batch_size = 4;
  return block;
}

BlockCase block_of_run(const Run& run, int64_t ranks) {
  check_keys(run);
  if (is_chain(run)) {
    ErrorPlace place;
    place.key = "model.family";
    throw UserError(
        "probe: the model is a chain of its own blocks, which cannot be cut down to one block; "
        "nearest "
        "valid choice: probe without a run file",
        place);
  }
  BlockCase block;
  block.run.model = run.model;
  block.run.model.shape.layers = 1;
  // Attention has a rate of its own. On long sequences it takes nearly all of a block's time,
  // minutes in all, of which the rest could not be told.
  int64_t& context = block.run.model.shape.context;
  const int64_t cuts = (context + kMostContext - 1) / kMostContext;
  context /= cuts;
  block.run.train.global_batch_size = cuts * resolve_batch(run, ranks).micro_batch_size;
  // As most of its blocks: of every:K with K > 1 these keep what they make.
  block.run.train.recompute =
      draft::parse_recompute(run.train.recompute).every == 1 ? "block" : "none";
  bool assumed = false;
  block.vocabulary = strategy::design_vocabulary(run, assumed);
  return block;
}

BlockCase block_of(const std::optional<Run>& run, int64_t ranks, int64_t width) {
  return run ? block_of_run(*run, ranks) : block_of_width(width);
}

std::optional<BlockCase> with_fewer_tokens(const BlockCase& block) {
  BlockCase fewer = block;
  int64_t& sequences = fewer.run.train.global_batch_size;
  int64_t& context = fewer.run.model.shape.context;
  if (sequences > 1)
    sequences = std::max<int64_t>(1, sequences / kFewer);
  else if (context >= kFewer * kLeastContext)
    context /= kFewer;
  else
    return std::nullopt;
  return fewer;
}

std::string description(const BlockCase& block) {
  const ShapeOptions& shape = block.run.model.shape;
  return fmt::format("{}, {} wide, {} x {} tokens", block.run.model.family, shape.width,
                     block.run.train.global_batch_size, shape.context);
}

namespace {

Run ready(Run run, Dtype dtype, int64_t threads, kernel::NarrowProducts products) {
  run.train.precision = dtype == Dtype::kBfloat16 ? "bf16" : "fp32";
  run.runtime.threads_per_rank = threads;
  run.runtime.chosen.products = products;
  return run;
}

}  // namespace

ModelWork::ModelWork(BlockCase block, Dtype dtype, int64_t threads, kernel::NarrowProducts products)
    : step_(std::make_unique<train::SoloStep>(ready(std::move(block.run), dtype, threads, products),
                                              block.vocabulary)) {
  const program::Program& program = program::class_of(step_->design().steady(), 0);
  program::for_each_instance(program, [&](const program::Op& op, const program::Loops&) {
    const program::KernelCost cost = program::cost_of(program, op, 0);
    flops_ += cost.flops;
    attention_flops_ += cost.attention_flops;
    weights_ += cost.weights;
    if (op.kernel != nullptr && op.kernel->bound == program::Bound::kMemory)
      update_bytes_ += cost.bytes;
  });
}

void ModelWork::run() {
  const double loss = step_->step().loss;
  if (!std::isfinite(loss))
    throw InternalError(fmt::format("probe: a step on random tokens has the loss {}", loss));
}

CodecWork::CodecWork(int64_t elements)
    : numbers_(static_cast<size_t>(elements)), back_(static_cast<size_t>(elements)) {
  for (int64_t i = 0; i < elements; ++i)
    numbers_[static_cast<size_t>(i)] = static_cast<float>(i * 2654435761 % 1024) / 512.0f - 1.0f;
  for (const char* text : kCodecs) {
    codecs_.push_back(codec::parse_codec(text));
    const int64_t bytes = codec::encoded_bytes(codecs_.back(), elements, Dtype::kFloat32);
    pieces_.emplace_back(static_cast<size_t>(bytes));
    bytes_ += 2.0 * static_cast<double>(bytes + 4 * elements);
  }
}

void CodecWork::run() {
  const int64_t elements = static_cast<int64_t>(numbers_.size());
  for (size_t at = 0; at < codecs_.size(); ++at) {
    const int64_t lost =
        codec::encode(codecs_[at], {numbers_.data(), Dtype::kFloat32, elements}, pieces_[at], 1);
    ensure(lost == 0, "probe: a codec lost numbers between -1 and 1");
    codec::decode(codecs_[at], pieces_[at], {back_.data(), Dtype::kFloat32, elements}, 1);
    // The coarser one has 15 levels for numbers in [-1, 1).
    if (!(std::abs(back_.back() - numbers_.back()) <= 2.0f / 14.0f))
      throw InternalError(fmt::format("probe: {} gave {} back for {}",
                                      codec::print_codec(codecs_[at]), back_.back(),
                                      numbers_.back()));
  }
}

namespace {

double products_of(const ModelWork& work) { return work.flops() - work.attention_flops(); }

/// Of a step, without its update and attention.
double product_seconds(const TimedBlock& block, const OtherRates& others) {
  const ModelWork& work = *block.work;
  const double update = work.update_bytes() / others.memory_bytes_per_second;
  const double blocks = std::max(block.seconds - update, 0.5 * block.seconds);
  const double attention = work.attention_flops() / others.attention_flops_per_second;
  // Where the other rates were measured in worse moments, at most twice what both have together.
  return std::max(blocks - attention, 0.5 * blocks * products_of(work) / work.flops());
}

}  // namespace

BlockRates block_rates(const TimedBlock& many, const TimedBlock& few, const OtherRates& others) {
  const double flops = products_of(*many.work), seconds = product_seconds(many, others);
  if (few.work == nullptr) return {flops / seconds, 0};
  const double weights = many.work->weights(), few_weights = few.work->weights();
  // seconds = flops / rate + weights / weight rate, for both.
  const double each = (seconds * few_weights - product_seconds(few, others) * weights) /
                      (flops * few_weights - products_of(*few.work) * weights);
  const double fastest = 1 / std::max(others.product_flops_per_second, flops / seconds);
  const double by_token = std::clamp(each, fastest, seconds / flops) * flops;
  const double by_weight = seconds - by_token;
  if (!(by_weight > kSeen * seconds)) return {flops / seconds, 0};
  return {flops / by_token, weights / by_weight};
}

}  // namespace strait::measure
