// Executes the compute ops of a training, evaluation or generation program with a model, an optimizer and
// a source of batches.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "strait/data/loader.h"
#include "strait/device/arithmetic.h"
#include "strait/model/block.h"
#include "strait/optim/options.h"
#include "strait/runtime/interpreter.h"
#include "strait/strategy/compose/compose.h"
#include "strait/train/coding.h"

namespace strait::train {

/// What changes from step to step.
struct StepSettings {
  double learning_rate = 0;
  int64_t updates = 0;          // updates before this one
  bool stop_requested = false;  // this rank was asked to stop
  double loss_scale = 1;        // of gradients until they are clipped
};

/// Fills the batch of one micro-step of this rank.
using BatchSource = std::function<void(int64_t micro_batch, BatchBuffer& batch)>;

/// One per rank; not thread-safe.
class ModelExecutor : public runtime::Executor {
 public:
  struct Options {
    OptimizerOptions optimizer;
    double clip_norm = 0;  // 0 = off
    bool documents = false;
  };
  /// `device`: where the values are, null = plain memory; the model's blocks must be made for it.
  ModelExecutor(const model::Model& model, model::Settings settings, Options options, int64_t rank,
                tensor::Device* device = nullptr)
      : model_(model),
        settings_(settings),
        unscaled_(settings.loss_scale),
        options_(std::move(options)),
        rank_(rank),
        on_device_(device != nullptr),
        arithmetic_(device::make_arithmetic(device, settings.threads)) {}

  void set_step(const StepSettings& step) {
    step_ = step;
    settings_.loss_scale = unscaled_ * step.loss_scale;
  }
  void set_batches(BatchSource source) { source_ = std::move(source); }
  model::Settings& settings() { return settings_; }
  /// Generation: sequences and new tokens of the next run, and tokens already cached.
  void set_prompt(int64_t batch, int64_t tokens, int64_t position, int64_t capacity);

  void execute(const runtime::Instance& instance) override;

 private:
  void begin_step(const runtime::Instance& instance);
  void load(const runtime::Instance& instance);
  void forward(const runtime::Instance& instance);
  void loss(const runtime::Instance& instance, bool backward);
  void backward(const runtime::Instance& instance);
  void forward_cached(const runtime::Instance& instance);
  void encode(const runtime::Instance& instance);
  void squared_norm(const runtime::Instance& instance);
  void clip_factor(const runtime::Instance& instance);
  void update(const runtime::Instance& instance);
  model::Call call(const runtime::Instance& instance) const;

  const model::Model& model_;
  model::Settings settings_;
  const double unscaled_;  // settings_.loss_scale without that of the step
  Options options_;
  int64_t rank_;
  bool on_device_;
  std::unique_ptr<device::Arithmetic> arithmetic_;
  Coding coding_;
  StepSettings step_;
  BatchSource source_;
  BatchBuffer buffer_;
  model::Batch batch_;
  int64_t counted_ = 0;  // targets of the batch
  /// What clip_factor has written, so that an update need not read it back from a device.
  std::array<double, strategy::kNumResults> results_{};
  int64_t cache_position_ = 0, cache_capacity_ = 0;
};

}  // namespace strait::train
