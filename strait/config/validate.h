// What a run file may ask for, and what follows from it for a number of ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "strait/config/problems.h"
#include "strait/config/run.h"

namespace strait {

/// Checks values, combinations, and what they mean on `ranks` ranks (mesh, batch, spans, cluster;
/// reads the cluster file if there is one). A key at its default is always accepted; any other
/// value that cannot take effect is refused. Whether data.path exists is not checked here: see
/// require_data. Errors: UserError with file, line, key and the nearest valid choice.
void validate_run(const Run& run, int64_t ranks);

/// The same, with all that is wrong in `problems`, where those of reading the file may stand
/// already: a check that builds on a key with a problem is left out.
void validate_run(const Run& run, int64_t ranks, Problems& problems);

/// Every key against its own rule alone: enough for the run of a checkpoint, which trains no more.
/// Errors as above.
void check_keys(const Run& run);

/// The valid value of the key name that is nearest to `name`: other characters become '-', and 100
/// stay.
std::string nearest_run_name(const std::string& name);

/// UserError unless data.path is set: training needs it; plan, simulate and verify do not.
void require_data(const Run& run);

/// Numbers that follow from the run and the number of ranks.
struct Resolved {
  int64_t ranks = 1;
  int64_t data_ranks = 1;         // ranks that see different sequences
  int64_t global_batch_size = 1;  // = micro_batch_size * accumulation * data_ranks
  /// Of a sequence: the context or, with train.global_batch_tokens, of a row of whole documents.
  int64_t sequence_tokens = 1;
  int64_t micro_batch_size = 1;  // sequences per rank and micro-step
  int64_t accumulation = 1;      // micro-steps per optimizer step
  int64_t threads_per_rank = 1;
  int64_t decay_steps = 0;  // step at which the learning rate's decay ends
};

/// Tokens that a step trains on: exact or, with train.global_batch_tokens, at most.
int64_t tokens_per_step(const Run& run, const Resolved& batch);

/// `cores`: cores that all ranks of this machine share. UserError names the nearest valid batch
/// size.
Resolved resolve_batch(const Run& run, int64_t ranks, int64_t cores);
/// With the cores that this process may use.
Resolved resolve_batch(const Run& run, int64_t ranks);

/// Vocabulary size where data.tokenizer alone gives it: 256 for byte, N for bpe:N; none for char
/// and for a tokenizer.json, which need the data or the file.
std::optional<int64_t> known_vocabulary(const DataOptions& data);

}  // namespace strait
