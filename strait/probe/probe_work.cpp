#include "strait/probe/probe_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "strait/base/errors.h"
#include "strait/program/program.h"
#include "strait/shape/shape.h"

namespace strait::measure {
namespace {

constexpr int64_t kVocabulary = 256;
constexpr int64_t kHeadWidth = 64;
constexpr const char* kCodecs[] = {"int8/2048", "int4/128"};  // of zero++ and zero-topo

Run block_run(Dtype dtype, int64_t width, int64_t threads, kernel::NarrowProducts products) {
  Run run;
  run.runtime.chosen.products = products;
  run.model = model_preset("nano-char");
  ShapeOptions& shape = run.model.shape;
  shape.layers = 1;
  shape.heads = shape.kv_heads = std::max<int64_t>(1, width / kHeadWidth);
  shape.width = std::max<int64_t>(16, width / shape.heads / 2 * 2 * shape.heads);
  shape.ffn_width = 4 * shape.width;
  shape.context = std::min<int64_t>(128, shape.width);
  run.train.global_batch_size = 4;
  run.train.precision = dtype == Dtype::kBfloat16 ? "bf16" : "fp32";
  run.runtime.threads_per_rank = threads;
  return run;
}

}  // namespace

ModelWork::ModelWork(Dtype dtype, int64_t width, int64_t threads, kernel::NarrowProducts products)
    : step_(std::make_unique<train::SoloStep>(block_run(dtype, width, threads, products),
                                              kVocabulary)) {
  const program::Program& program = program::class_of(step_->design().steady(), 0);
  program::for_each_instance(program, [&](const program::Op& op, const program::Loops&) {
    const program::KernelCost cost = program::cost_of(program, op, 0);
    flops_ += cost.flops;
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

double model_rate(const ModelWork& work, double seconds, double memory_bytes_per_second) {
  const double update = work.update_bytes() / memory_bytes_per_second;
  return work.flops() / std::max(seconds - update, 0.5 * seconds);
}

}  // namespace strait::measure
