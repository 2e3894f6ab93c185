// Global batch = micro-batch * accumulation * data ranks, without remainder.
#include <fmt/format.h>

#include <algorithm>

#include "strait/config/check_mesh.h"
#include "strait/config/document_rows.h"
#include "strait/config/keys.h"
#include "strait/config/validate.h"
#include "strait/threads/cores.h"
#include "strait/topology/mesh.h"
#include "strait/topology/nearest.h"

namespace strait {
namespace {

void refuse_global(const Run& run, int64_t data_ranks) {
  refuse_key(run, "train.global_batch_size",
             fmt::format("train.global_batch_size = {} does not divide over {} data-parallel "
                         "ranks; the nearest valid "
                         "value is {}",
                         run.train.global_batch_size, data_ranks,
                         nearest_multiples(run.train.global_batch_size, data_ranks)));
}

void refuse_micro(const Run& run, int64_t data_ranks) {
  const int64_t global = run.train.global_batch_size, micro = run.train.micro_batch_size;
  refuse_key(
      run, "train.micro_batch_size",
      fmt::format(
          "train.micro_batch_size = {} times {} data-parallel ranks does not divide "
          "train.global_batch_size = {}; the nearest valid value is {}, or a global batch of {}",
          micro, data_ranks, global, nearest_divisor(global / data_ranks, micro),
          nearest_multiples(global, micro * data_ranks)));
}

/// Verifier and simulator follow each micro-step through each layer: seconds at these numbers.
constexpr int64_t kMostMicroSteps = 1 << 20, kMostVisits = 1 << 22;

int64_t most_micro_steps(const Run& run) {
  return std::min(kMostMicroSteps, kMostVisits / std::max<int64_t>(run.model.shape.layers, 1));
}

/// The least part of `share` that divides it into at most `most` parts.
int64_t least_micro_batch(int64_t share, int64_t most) {
  int64_t least = share;
  for (int64_t part = 1; part <= share / part; ++part) {
    if (share % part != 0) continue;
    for (const int64_t size : {part, share / part})
      if (share / size <= most) least = std::min(least, size);
  }
  return least;
}

void refuse_micro_steps(const Run& run, int64_t share, int64_t micro_steps) {
  const int64_t most = most_micro_steps(run);
  refuse_key(
      run, "train.micro_batch_size",
      fmt::format("train.micro_batch_size = {} makes {} micro-steps of a step, and of {} layers at "
                  "most {} are answered for; the nearest valid value is {}",
                  run.train.micro_batch_size, micro_steps, run.model.shape.layers, most,
                  least_micro_batch(share, most)));
}

/// Sequences of each data-parallel rank, or rows of documents, and how long they are.
int64_t resolve_share(const Run& run, Resolved& resolved) {
  if (run.train.global_batch_tokens > 0) {
    const DocumentRows rows = document_rows(run, resolved.data_ranks);
    resolved.sequence_tokens = rows.tokens;
    resolved.global_batch_size = rows.per_rank * resolved.data_ranks;
    return rows.per_rank;
  }
  resolved.sequence_tokens = run.model.shape.context;
  resolved.global_batch_size = run.train.global_batch_size;
  if (run.train.global_batch_size % resolved.data_ranks != 0)
    refuse_global(run, resolved.data_ranks);
  return run.train.global_batch_size / resolved.data_ranks;
}

/// Without a size in the run file: a row of documents, or all of the share at once, or with stages
/// the fewest micro-batches that are at least twice as many and that the order can use.
int64_t default_micro_batch(const Run& run, int64_t share) {
  const int64_t stages = run.mesh.axes.stage;
  if (run.train.global_batch_tokens > 0) return 1;
  if (stages == 1) return share;
  const int64_t unit = run.pipeline.order == "interleaved" ? stages : 1;
  int64_t best = 0;  // micro-batches
  for (int64_t part = 1; part <= share / part; ++part) {
    if (share % part != 0) continue;
    for (const int64_t count : {part, share / part})
      if (count >= 2 * stages && count % unit == 0 && (best == 0 || count < best)) best = count;
  }
  return best == 0 ? 1 : share / best;
}

}  // namespace

Resolved resolve_batch(const Run& run, int64_t ranks, int64_t cores) {
  Resolved resolved;
  resolved.ranks = ranks;
  resolved.data_ranks = Mesh(run.mesh, ranks).data_ranks();
  const int64_t share = resolve_share(run, resolved);
  resolved.micro_batch_size = run.train.micro_batch_size == 0 ? default_micro_batch(run, share)
                                                              : run.train.micro_batch_size;
  if (share % resolved.micro_batch_size != 0) refuse_micro(run, resolved.data_ranks);
  resolved.accumulation = share / resolved.micro_batch_size;
  if (resolved.accumulation > most_micro_steps(run))
    refuse_micro_steps(run, share, resolved.accumulation);
  check_micro_batches(run, share, resolved.accumulation);
  const int64_t tokens = resolved.sequence_tokens / run.mesh.axes.sequence;
  if (!plans_documents(run))  // plans make rows even
    check_row_split(run, resolved.micro_batch_size * tokens, resolved.micro_batch_size, share);
  const int64_t written = run.runtime.threads_per_rank;
  resolved.threads_per_rank = written > 0 ? written : std::max<int64_t>(cores / ranks, 1);
  resolved.decay_steps =
      run.optimizer.decay_steps == 0 ? run.train.steps : run.optimizer.decay_steps;
  return resolved;
}

int64_t tokens_per_step(const Run& run, const Resolved& batch) {
  const int64_t documents = run.train.global_batch_tokens;
  return documents > 0 ? documents : batch.global_batch_size * batch.sequence_tokens;
}

Resolved resolve_batch(const Run& run, int64_t ranks) {
  return resolve_batch(run, ranks, available_cores());
}

}  // namespace strait
