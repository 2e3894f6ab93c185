#include "strait/train/solo_step.h"

#include "strait/base/random.h"
#include "strait/execute/model_settings.h"
#include "strait/model/tensor_blocks.h"
#include "strait/persist/unit_state.h"
#include "strait/strategy/finish/step_values.h"

namespace strait::train {
namespace {

comm::ThreadWorldOptions on_device(tensor::Device* device) {
  comm::ThreadWorldOptions options;
  options.device = device;
  return options;
}

/// The same random tokens every time.
execute::BatchSource synthetic_batches(const strategy::Design& design) {
  const int64_t sequences = design.batch.micro_batch_size, tokens = design.batch.sequence_tokens;
  const int64_t context = design.run.model.shape.context;
  const uint64_t vocabulary = static_cast<uint64_t>(design.shape.vocabulary);
  return [=, stream = RandomStream(design.run.seed, "synthetic")](int64_t, int64_t micro_batch,
                                                                  BatchBuffer& batch) {
    batch.inputs.clear();
    batch.targets.clear();
    batch.sequences.clear();
    batch.document_starts.clear();
    for (int64_t b = 0; b < sequences; ++b) {
      const int64_t sequence = micro_batch * sequences + b;
      batch.sequences.push_back(sequence);
      for (int64_t t = 0; t < tokens; ++t) {
        const uint64_t at = static_cast<uint64_t>(sequence * (tokens + 1) + t);
        batch.inputs.push_back(static_cast<int32_t>(stream.below(at, vocabulary)));
        batch.targets.push_back(static_cast<int32_t>(stream.below(at + 1, vocabulary)));
        batch.document_starts.push_back(static_cast<int32_t>(t / context * context));
      }
    }
  };
}

/// The learning rate stays as it is.
execute::StepRules rules_of(const strategy::Design& design) {
  execute::StepRules rules;
  rules.optimizer = design.run.optimizer;
  rules.optimizer.schedule = "constant";
  rules.optimizer.warmup_steps = 0;
  rules.clip_norm = design.run.train.clip_norm;
  rules.global_batch_size = design.batch.global_batch_size;
  return rules;
}

}  // namespace

SoloStep::SoloStep(const Run& run, int64_t vocabulary, tensor::Device* device,
                   trace::Recorder* recorder)
    : design_(strategy::make_design(run, 1, vocabulary)),
      worlds_(comm::make_thread_worlds(1, design_.cluster, on_device(device))),
      pool_(device),
      state_(pool_, 0),
      model_(design_.layout.local_shape(), design_.dtype),
      arithmetic_(device::make_arithmetic(device, execute::model_settings(design_).threads)),
      environment_{model_, design_.layout, execute::model_settings(design_), *arithmetic_,
                   device != nullptr},
      site_{worlds_->world(0), state_, pool_, executors_, recorder, run.runtime.deadline_seconds},
      runner_(design_.programs, site_) {
  if (device) model::use_tensor_blocks(model_, *device, design_.dtype);
  execute::add_block_executors(executors_, environment_, synthetic_batches(design_));
  execute::add_coding_executors(executors_, *arithmetic_);
  execute::add_low_rank_executors(executors_);
  execute::add_step_executors(executors_, environment_, rules_of(design_));
  runner_.prepare(strategy::kSteady);
  persist::UnitState(design_.programs, design_.shape, design_.layout, state_).initialize(run.seed);
  runner_.run(strategy::kForStart, 0);
}

SoloStep::~SoloStep() = default;

SoloStep::Result SoloStep::step() {
  const runtime::RunTimes times = runner_.run(strategy::kForStep, steps_++);
  const auto agreed = state_.read<double, strategy::kNumAgreed>("agreed");
  return {times.seconds, agreed[strategy::kLossSum] / agreed[strategy::kLossCount], times.ops};
}

double SoloStep::loss() {
  runner_.run(strategy::kForEvaluation, steps_);
  const auto agreed = state_.read<double, strategy::kNumAgreed>("agreed");
  return agreed[strategy::kLossSum] / agreed[strategy::kLossCount];
}

}  // namespace strait::train
