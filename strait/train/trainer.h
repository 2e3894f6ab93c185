// One rank of a training run.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/wait_clock.h"
#include "strait/checkpoint/session.h"
#include "strait/checkpoint/snapshot.h"
#include "strait/comm/communicator.h"
#include "strait/comm/threads/hub.h"
#include "strait/data/document_loader.h"
#include "strait/execute/environment.h"
#include "strait/job/job.h"
#include "strait/memory/pool.h"
#include "strait/model/block.h"
#include "strait/persist/layer_settings.h"
#include "strait/persist/run_values.h"
#include "strait/persist/unit_state.h"
#include "strait/report/metrics.h"
#include "strait/report/tensorboard.h"
#include "strait/runtime/runner.h"
#include "strait/runtime/state.h"
#include "strait/tensor/device.h"
#include "strait/trace/spans.h"
#include "strait/train/flight_dump.h"
#include "strait/train/outcome.h"
#include "strait/train/planned_batches.h"
#include "strait/train/sent_bytes.h"
#include "strait/train/step_clock.h"
#include "strait/train/validation.h"

namespace strait::train {

/// Called on rank 0 as the run goes on; may print. Never throws.
struct Observer {
  /// Every rank's, on its own thread: a batch as it is about to be trained on. Not called when
  /// empty.
  std::function<void(int64_t step, const BatchBuffer&)> loaded;
  std::function<void(const report::StepMetrics&)> step = [](const report::StepMetrics&) {};
  std::function<void(int64_t step, double loss)> evaluated = [](int64_t, double) {};
  std::function<void(const std::string& path)> saved = [](const std::string&) {};
  /// Checkpoints behind the one that a run has gone back to, before its first step.
  std::function<void(const std::string& path, const std::string& new_path)> set_aside =
      [](const std::string&, const std::string&) {};
  /// What the run does otherwise than its file asks, before its first step.
  std::function<void(const std::string& what)> warned = [](const std::string&) {};
};

/// How a run reaches the process around it; everything may be empty.
struct Hooks {
  /// Is given, while the run lasts, a function that writes the flight records of the ranks of this
  /// process; then an empty one. `kind` says why: "request", "crash".
  std::function<void(std::function<void(const std::string& kind)>)> on_request;
  /// The run has failed with `cause`, but some of its ranks hang in something that cannot be ended
  /// from outside. The outcome is filled in. Only the end of the process helps: it should not
  /// return.
  std::function<void(const std::exception_ptr& cause)> stuck;
  /// For tests: faults of the ranks, and what a rank does before a compute op and in a save.
  comm::ThreadFaults faults;
  std::function<void(int64_t rank, const runtime::Instance&)> before_op;
  std::function<void(int64_t rank, int64_t step)> during_save;
  /// The settings of layers that a rank has received, before they are compared.
  std::function<void(int64_t rank, strategy::LayerSettings&)> settings_received;
  /// Lengths of the documents that a rank has read of a batch, before it plans.
  PlannedBatches::LengthsRead lengths_read;
  /// Of ranks that are processes: before they take part in a transfer, on any thread.
  std::function<void(int64_t rank, const comm::Call&)> before_transfer;
};

/// The save that a rank is in.
struct Saving {
  std::atomic<double> since{0};  // on the clock of waits, in seconds; 0 = none
  std::atomic<int64_t> step{0};
};

/// What ranks of one process share; `process_rank`: it has this one rank only. Rank r writes only
/// entry r of the vectors; rank 0 writes the rest.
struct Shared {
  Shared(const Job& the_job, const Observer& the_observer, const std::atomic<int>& the_signal,
         const Hooks& the_hooks, std::optional<int64_t> process_rank = std::nullopt);
  const Job& job;
  const Observer& observer;
  const Hooks& hooks;
  const std::atomic<int>& signal;  // number of the signal that asked to stop, 0 = none
  std::string save_token = checkpoint::make_session_token();  // the same on all ranks of the run
  Outcome outcome;
  std::unique_ptr<report::MetricsWriter> metrics;     // rank 0
  std::unique_ptr<report::TensorboardWriter> events;  // rank 0
  SentBytes sent;                                     // of ranks of one process
  const bool processes = false;                       // other ranks' figures must be asked for
  std::vector<trace::Recorder> recorders;             // [rank] timeline
  FlightDump flights;
  std::optional<strategy::AdaptedPrograms> adapted;  // where settings of layers are chosen
  std::vector<Saving> saving;                        // [rank]
  mutable WaitClock clock;                           // of saves; looked at by who watches them
  std::mutex mutex;                                  // guards the ledgers of outcome
};

/// Owns the state of one rank and runs its steps. All methods run on the rank's thread.
class Trainer {
 public:
  /// `window`: memory that other ranks reach without a copy, or null.
  Trainer(Shared& shared, comm::World& world, memory::PageSource* window = nullptr);
  ~Trainer();
  /// From the first step to the last, evaluation and checkpoints included. Throws NonFinite under
  /// policy "stop".
  void run();

 private:
  struct StepResult {
    double loss = 0, gradient_norm = 0;
    bool finite = true, stop = false;
    bool counted = true;     // some token's loss: without any it is NaN and nothing has changed
    double not_encoded = 0;  // numbers that were not finite where a codec met them
    double loss_scale = 1;
    bool overflowed = false;  // by the loss scale, which has become smaller
    runtime::RunTimes times;  // inside the program
    double seconds = 0;       // of the step, by the clock
    Json plan;                // of its documents, with sequence.plan
  };
  StepResult train_step(int64_t step);
  /// Of replicas that go on by themselves: whether they begin `step`, or all stop before it.
  bool begins(int64_t step);
  /// Where batches are planned: what runs next trains on the batch that is due.
  void begin_planned(int64_t step);
  /// What all ranks refuse alike after `step` steps, in step `refused`, ends the run, not what it
  /// has learned.
  void save_if_refused(int64_t step, int64_t refused, const std::function<void()>& begin);
  /// The same where the next step validates the update: that one is run here, too, unless somebody
  /// looks at the weights before. It is run again where it was void.
  StepResult validated_step(int64_t step);
  /// The last step becomes valid without another.
  void settle(int64_t step, runtime::RunTimes& times);
  /// The kinds of a purpose that follow a step and are counted between steps.
  runtime::RunTimes run_between(const char* purpose, int64_t step,
                                std::optional<int64_t> named = {});
  bool validates_behind() const { return job_.design.run.pipeline.post_validation; }
  /// Whether weights are evaluated or saved after so many steps.
  bool is_border(int64_t steps) const;
  /// Fills a batch of training, or of the evaluation under way.
  void fill_batch(int64_t first_sequence, int64_t micro_batch, BatchBuffer& buffer);
  void fill_sequences(int64_t first_sequence, int64_t micro_batch, BatchBuffer& buffer);
  execute::StepRules rules();
  /// That the update behind `step` steps is made of.
  int64_t tokens_of(int64_t step) const;
  double model_flops_of(int64_t step) const;
  ValidationPlan validation_plan() const;
  /// Takes up what the communicators have counted since.
  void collect_traffic();
  /// What this rank has sent in a step becomes part of its traffic. What a step leaves under way
  /// counts for the one that ends it; `last`: for this one.
  void count_traffic(int64_t step, bool last);
  /// By level, of all ranks where these meet in every step. Between processes, where they do not,
  /// as if all sent as much as this one, and where replicas go on by themselves as if these did.
  void share_traffic(int64_t step, std::vector<int64_t> sent);
  /// What programs have moved since that are no steps.
  void count_between_steps();
  void account(int64_t step, const StepResult& result);
  report::StepMetrics metrics_of(int64_t step, const StepResult& result, double model_flops) const;
  /// False: a request to stop has cut it short.
  bool evaluate(int64_t step);
  /// The one that a signal has prevented, and what hangs on it. False: cut short again.
  bool make_up_evaluation(int64_t step);
  /// Chooses settings of layers where that is due.
  void adapt(int64_t step);
  /// Takes up those of the checkpoint, if they are of the same uniform setting.
  void resume_settings();
  void resume_border();
  /// Takes up a validation loss that all ranks have.
  void note_validation(int64_t step, double loss);
  /// Calls save or finish as a phase that the table of waits and the watch over saves can see.
  void guard_save(const std::string& phase, int64_t step, const std::function<void()>& body);
  /// True on all ranks when any of them has been asked to stop. For moments outside of a program.
  bool any_asked_to_stop(int64_t step);
  /// `due`: it would be saved if it were not the best so far.
  void save(int64_t step, bool due = true);
  /// Asked to stop before its first step: what it came from is saved unless it stands there
  /// already.
  /// Opens a writer where a copy of what this rank saves fits beside training; else saves wait.
  void save_beside_training();
  void save_unchanged();
  /// What a save has begun to write.
  void finish_writing();
  /// A checkpoint is complete, if `path` names one.
  void note_saved(const std::optional<std::string>& path);
  /// A step with a gradient that is not finite: taken back by the loss scale, skipped, or the end.
  void non_finite(int64_t step, const StepResult& result);
  /// Weights, counters and all else that a step starts from: as the checkpoint has them, or as a
  /// run starts.
  void begin_state();
  /// Counters and the loss scale as a run starts, or as a checkpoint of version 0.1 says.
  void begin_progress();
  /// An element of the scalars that live from step to step.
  double progress(int element);
  bool scales_loss() const { return job_.design.dtype == Dtype::kFloat16; }
  /// Times steps behind the end of the run, whose state they spoil, in three ways of waiting
  /// (Overlap).
  void measure_overlap(int64_t step);
  /// Waits for saves and carries; hash, memory and traffic of the whole run into the outcome.
  void finish();
  /// What every checkpoint holds beside the shards: made once, as a large vocabulary takes long to
  /// print.
  void prepare_texts();
  checkpoint::SaveDescription describe(int64_t step, bool due);
  double learning_rate(int64_t step) const;
  bool lead() const { return rank_ == 0; }

  Shared& shared_;
  const Job& job_;
  comm::World& world_;
  int64_t rank_;
  SentBytes::Presence presence_;
  tensor::Device* device_;                    // null = plain memory
  std::unique_ptr<tensor::Queue> queue_;      // of the rank's own work on the device
  std::unique_ptr<tensor::Entered> entered_;  // as long as the rank lives
  memory::Pool pool_;
  runtime::State state_;
  model::Model model_;
  std::unique_ptr<device::Arithmetic> arithmetic_;
  execute::Environment environment_;
  runtime::Executors executors_;
  runtime::Site site_;
  runtime::Runner runner_;
  /// With train.global_batch_tokens, where sequence numbers of a step count batches.
  std::unique_ptr<DocumentLoader> documents_;
  std::unique_ptr<PlannedBatches> planned_;  // where a plan spreads documents over ranks
  std::optional<persist::LayerSettings> settings_;
  std::unique_ptr<persist::UnitState> units_;
  std::unique_ptr<persist::RunValues> values_;
  std::vector<checkpoint::TextFile> texts_;  // rank 0
  checkpoint::SaveSession saves_;
  std::unique_ptr<checkpoint::SnapshotWriter> writer_;  // null = saves are synchronous
  Ledger pending_, traffic_;          // not part of a step that has ended; of all that have
  std::vector<int64_t> sent_by_all_;  // in the step that has ended; on rank 0 and where it is known
  StepClock clock_;
  double exposed_seconds_ = 0, busy_seconds_ = 0;
  double evaluation_seconds_ = 0, saving_seconds_ = 0;
  int64_t first_step_ = 0;  // of this process
  int64_t step_ = 0;        // that is under way
  // First of this rank's, while an evaluation is under way.
  std::optional<int64_t> evaluated_window_;
  int64_t tokens_done_ = 0;   // over the whole run
  int64_t landed_step_ = -1;  // at whose end results under way were last taken up; -1 = none
  bool under_way_ = false;    // the step to come has run, and waits to be validated
  bool stop_asked_ = false;   // in a valid step, while another one was under way
  bool bytes_known_ = false;  // those that other processes send
  int64_t saved_step_ = -1;
  std::optional<int64_t> evaluated_step_;      // last one that was
  double validation_loss_ = report::kUnknown;  // of that step
  std::optional<double> best_validation_loss_;
  bool is_best_ = false;  // the last evaluated step is, so far
};

}  // namespace strait::train
