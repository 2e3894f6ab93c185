#include "strait/train/memory_check.h"

#include <fmt/format.h>

#include <string>

#include "strait/base/errors.h"
#include "strait/program/memory.h"

namespace strait::train {
namespace {

double gigabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

/// Of the ranks of this computer. Shards shrink with the rank, so rank 0 holds most.
double needs_bytes(const strategy::Design& design, int64_t ranks_here) {
  return static_cast<double>(program::peak_memory(design.steady().front(), 0).total()) *
         static_cast<double>(ranks_here);
}

/// "train.micro_batch_size = 2 with train.recompute = "block", which needs 7.1 GB", or that none
/// does.
std::string what_would_fit(const strategy::Design& design, int64_t ranks_here, double has_bytes) {
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

void require_memory(const strategy::Design& design, int64_t ranks_here, int64_t has_bytes) {
  const double needs = needs_bytes(design, ranks_here), has = static_cast<double>(has_bytes);
  if (needs <= has) return;
  throw NothingFits(
      fmt::format("the {} rank{} of this computer need {:.4g} GB and {:.4g} GB are there; {}",
                  ranks_here, ranks_here == 1 ? "" : "s", needs / 1e9, gigabytes(has_bytes),
                  what_would_fit(design, ranks_here, has)));
}

}  // namespace strait::train
