#include "strait/train/evaluate.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <memory>

#include "strait/base/errors.h"
#include "strait/base/process_memory.h"
#include "strait/comm/threads/thread_world.h"
#include "strait/execute/environment.h"
#include "strait/runtime/interpreter.h"
#include "strait/strategy/compose/compose.h"
#include "strait/strategy/finish/step_values.h"
#include "strait/train/load_weights.h"
#include "strait/verify/verify.h"

namespace strait::train {
namespace {

/// Loss over one micro-batch, nothing of it split.
program::Program evaluation_program(const EvaluationJob& job, const Cluster& cluster) {
  strategy::StepOptions options;
  options.purpose = strategy::Purpose::kEvaluate;
  options.micro_batch_size = job.plan.micro_batch;
  options.tokens = job.shape.options.context;
  options.dtype = job.dtype;
  options.documents = job.documents;
  program::Program program =
      strategy::compose(job.shape, strategy::whole_placement(), cluster, options);
  program::verify_or_throw({program});
  require_room(program,
               fmt::format("an evaluation of {} sequences at a time", job.plan.micro_batch),
               job.plan.micro_batch > 1 ? "set train.micro_batch_size = 1"
                                        : "the weights alone take most of it",
               usable_memory_bytes());
  return program;
}

model::Settings settings_of(const EvaluationJob& job) {
  model::Settings settings;
  settings.dtype = job.dtype;
  settings.threads = job.threads;
  settings.training = false;
  settings.seed = job.seed;
  return settings;
}

/// One rank with the weights of the checkpoint.
class Evaluator {
 public:
  explicit Evaluator(const EvaluationJob& job)
      : job_(job),
        cluster_(make_cluster({}, 1)),
        program_(evaluation_program(job, cluster_)),
        worlds_(comm::make_thread_worlds(1, cluster_)),
        state_(pool_, 0),
        layout_(job.shape, Mesh({}, 1)),
        model_(layout_.local_shape(), job.dtype),
        arithmetic_(device::make_arithmetic(nullptr, job.threads)),
        environment_{model_, layout_, settings_of(job), *arithmetic_},
        site_{worlds_->world(0), state_, pool_, executors_, nullptr, kDeadlineSeconds} {
    execute::add_block_executors(executors_, environment_,
                                 [this](int64_t, int64_t, BatchBuffer& buffer) {
                                   fill_windows(job_.validation, job_.plan, first_, buffer);
                                 });
    execute::add_coding_executors(executors_, *arithmetic_);
    execute::add_step_executors(executors_, environment_, {});
    interpreter_ = std::make_unique<runtime::Interpreter>(program_, site_);
    const std::array<double, strategy::kNumProgress> begin{};
    state_.write("progress", begin.data(), sizeof(begin));
    load_weights(program_, job.shape, state_, job.reader, nullptr);
    job.reader.verify_share(0, 1);
  }

  std::optional<double> loss() {
    return validation_loss(job_.plan, state_, [this](int64_t first) {
      first_ = first;
      interpreter_->run(0);
    });
  }

 private:
  static constexpr double kDeadlineSeconds = 120;  // of transfers, which one rank has none of

  const EvaluationJob& job_;
  Cluster cluster_;
  program::Program program_;
  std::unique_ptr<comm::ThreadWorlds> worlds_;
  memory::Pool pool_;
  runtime::State state_;
  Layout layout_;
  model::Model model_;
  std::unique_ptr<device::Arithmetic> arithmetic_;
  execute::Environment environment_;
  runtime::Executors executors_;
  runtime::Site site_;
  std::unique_ptr<runtime::Interpreter> interpreter_;
  int64_t first_ = 0;  // window of the batch under way
};

}  // namespace

double evaluate_checkpoint(const EvaluationJob& job) {
  const std::optional<double> loss = Evaluator(job).loss();
  if (!loss) throw UserError("the validation part has no token whose loss counts");
  if (!std::isfinite(*loss))
    throw NonFinite(fmt::format("the validation loss of {} is {}", job.reader.path(), *loss));
  return *loss;
}

}  // namespace strait::train
