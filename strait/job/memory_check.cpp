#include "strait/job/memory_check.h"

#include <fmt/format.h>

#include <string>

#include "strait/base/errors.h"
#include "strait/predict/predict.h"
#include "strait/program/memory.h"

namespace strait {
namespace {

double gigabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

using Ranks = std::vector<int64_t>;

/// Of the ranks of this computer, each as much as the one of its class that holds most.
double needs_bytes(const strategy::Design& design, const Ranks& ranks_here) {
  const std::vector<program::Program>& classes = design.round.classes;
  const std::vector<program::MemoryUse> peaks = predict::peak_memories(design);
  double bytes = 0;
  for (const int64_t rank : ranks_here) {
    const auto at = &program::class_of(classes, rank) - classes.data();
    bytes += static_cast<double>(peaks[static_cast<size_t>(at)].total());
  }
  return bytes;
}

/// "train.micro_batch_size = 2 with train.recompute = "block", which needs 7.1 GB", or that none
/// does.
std::string what_would_fit(const strategy::Design& design, const Ranks& ranks_here,
                           double has_bytes) {
  const int64_t largest = design.batch.micro_batch_size;
  for (const char* recompute : {design.run.train.recompute.c_str(), "block"})
    for (int64_t size = largest; size >= 1; --size) {
      if (largest % size != 0) continue;
      Run trial = design.run;
      trial.train.micro_batch_size = size;
      trial.train.recompute = recompute;
      const double needs = needs_bytes(
          strategy::make_design(trial, design.batch.ranks, design.shape.vocabulary), ranks_here);
      if (needs <= has_bytes)
        return fmt::format(
            "the nearest that fits is train.micro_batch_size = {} with train.recompute = \"{}\", "
            "which needs {:.3g} GB",
            size, recompute, needs / 1e9);
    }
  return "no micro-batch fits; strait plan tells with how many ranks and which placement the model "
         "does";
}

}  // namespace

int64_t require_memory(const strategy::Design& design, const Ranks& ranks_here, int64_t has_bytes) {
  const double needs = needs_bytes(design, ranks_here), has = static_cast<double>(has_bytes);
  if (needs <= has)
    return static_cast<int64_t>((has - needs) / static_cast<double>(ranks_here.size()));
  throw NothingFits(
      fmt::format("the {} rank{} of this computer need {:.4g} GB and {:.4g} GB are there; {}",
                  ranks_here.size(), ranks_here.size() == 1 ? "" : "s", needs / 1e9,
                  gigabytes(has_bytes), what_would_fit(design, ranks_here, has)));
}

}  // namespace strait
