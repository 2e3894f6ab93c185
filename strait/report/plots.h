// Pictures of a run: loss and time per step, drawn by gnuplot.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "strait/base/errors.h"
#include "strait/report/metrics.h"
#include "strait/trace/spans.h"

namespace strait::report {

/// gnuplot cannot be started or fails on a script.
class PlotterError : public UserError {
 public:
  using UserError::UserError;
};

struct PlotOptions {
  std::string gnuplot = "gnuplot";
  std::string loss_unit = "nats per token";
  std::string prediction_note = {};  // behind "predicted" in legends: " by preset frontier"
};

/// Draws into `folder` (made when missing): loss.{svg,png}, training and validation loss over
/// steps, and time.{svg,png}, the seconds of a step stacked into computing, exposed communication
/// and the rest, with the predicted time. Beside them the data (*.tsv) and the scripts (*.gnuplot),
/// so that a picture can be changed by hand. A picture of which no step tells anything is left out.
/// Long runs are drawn as means over at most 400 groups
/// of neighbouring steps. Blocks until gnuplot ends. Returns the paths of the pictures. Errors: no
/// steps (UserError); options.gnuplot, a name looked up in PATH or a path, cannot be started or
/// fails (PlotterError); a file cannot be written (InputOutputError).
std::vector<std::string> draw_plots(const std::vector<StepMetrics>& steps,
                                    const std::string& folder, const PlotOptions& options = {});

/// The steps of one of several runs.
struct NamedSteps {
  std::string name;
  std::vector<StepMetrics> steps;
};

/// Draws compare.{svg,png} into `folder` (made when missing): the smoothed training loss of each
/// run over its steps, and its validation loss as points. Errors as draw_plots.
std::vector<std::string> draw_comparison(const std::vector<NamedSteps>& runs,
                                         const std::string& folder,
                                         const PlotOptions& options = {});

/// Draws, behind draw_plots and from its tables in `folder`, the figures of the page: loss,
/// throughput, time, memory, as far as any step tells them. Captions and SVG texts. Errors as
/// draw_plots.
std::vector<std::pair<std::string, std::string>> page_figures(const std::vector<StepMetrics>& steps,
                                                              const std::string& folder,
                                                              const PlotOptions& options = {});

/// Draws into `folder`, behind draw_plots, plan.{svg,png}: tokens and pairs of ranks by zone, as
/// the last planned batch of `steps` has them, and what the attention of every planned batch took
/// to compute, predicted and measured. Nothing where no batch tells its plan (sequence.plan).
std::vector<std::string> draw_batch_plan(const std::vector<StepMetrics>& steps,
                                         const std::string& folder,
                                         const PlotOptions& options = {});

/// UserError unless the name of a picture ends in .svg or .png.
void require_picture_name(const std::string& path);

/// Draws what ran when on one rank, a row per stream, to `path` (require_picture_name); no other
/// file stays there. Errors as draw_plots; an old picture then stays.
void draw_timeline(const trace::Recorder& recorder, const std::vector<std::string>& streams,
                   const std::string& path, const std::string& gnuplot = "gnuplot");

}  // namespace strait::report
