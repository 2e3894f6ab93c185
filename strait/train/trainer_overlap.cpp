// How much communication is hidden behind computing: the same step timed in three ways of waiting.
#include <vector>

#include "strait/report/statistics.h"
#include "strait/train/trainer.h"

namespace strait::train {
namespace {

/// Medians of steps: seconds, and what of them was spent waiting for transfers.
struct Timed {
  double seconds = 0, waited = 0;
};

}  // namespace

void Trainer::measure_overlap(int64_t step) {
  begin_planned(step);  // what was planned last may be an evaluation's batch
  runtime::Interpreter& program = runner_.prepare(strategy::kSteady);
  const auto timed = [&](runtime::Waiting waiting) {
    std::vector<double> seconds, waited;
    state_.drain();
    for (int64_t k = 0; k <= job_.design.run.output.overlap_steps; ++k) {
      const runtime::RunTimes times = program.run(step, waiting);
      if (k == 0) continue;  // warms up
      seconds.push_back(times.seconds);
      waited.push_back(times.exposed_seconds);
    }
    return Timed{report::statistics_of(seconds).median, report::statistics_of(waited).median};
  };
  const Timed written = timed(runtime::Waiting::kAsWritten);
  const Timed serial = timed(runtime::Waiting::kAtOnce);
  const Timed floor = timed(runtime::Waiting::kNever);
  state_.drain();
  if (lead())
    shared_.outcome.overlap = Overlap{job_.design.run.output.overlap_steps, written.seconds,
                                      serial.seconds, floor.seconds, serial.waited};
}

}  // namespace strait::train
