// Repeated timing of several contenders, interleaved, so that a disturbance of the machine meets
// them all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace strait::measure {

struct TimingOptions {
  int64_t warmups = 2;  // runs of each contender that are not counted
  int64_t runs = 7;     // counted runs of each, at least 5
  double minimum_run_seconds =
      2e-3;  // short calls are repeated inside a run until it lasts about this long
};

/// What is timed: one call does the work and returns the seconds of one piece of it (the contender
/// holds the clock, because peers run in other processes). A contender that throws strait::Error is
/// dropped, with the message as `missing`.
struct Contender {
  std::string name;
  std::string version;
  std::function<double()> run;
  std::string missing;  // not empty: why it cannot run; `run` is then never called
  int64_t pieces = 1;   // pieces of work that one call does
};

/// Seconds per call of one contender, by run.
struct Timings {
  std::string name, version;
  std::vector<double> seconds;
  std::string missing;
};

/// Warms up and times all contenders; run r starts with contender r mod n, so that none always
/// follows the same other one. The first contender's errors are thrown, those of the others become
/// `missing`. Throws UserError when options.runs < 5.
std::vector<Timings> time_interleaved(const std::vector<Contender>& contenders,
                                      const TimingOptions& options);

/// A contender's `run` for a plain function: the clock is read around it.
std::function<double()> timed(std::function<void()> work);

}  // namespace strait::measure
