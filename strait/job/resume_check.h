// What a resumed run may change against the run that saved its checkpoint.
#pragma once

#include <string>
#include <vector>

#include "strait/base/json.h"
#include "strait/checkpoint/reader.h"
#include "strait/config/run.h"
#include "strait/data/corpus.h"
#include "strait/strategy/compose/design.h"

namespace strait {

/// A setting that the resumed run changes, as text.
struct ResumeChange {
  std::string key;  // "train.steps", or "ranks", "data", "modules"
  std::string was, is;
};

/// Hash of the training tokens: of all, or of 64 evenly spaced blocks of 65,536 tokens where there
/// are more. XXH3-128, hexadecimal.
std::string data_hash(const Corpus& corpus);

/// Compares a run with the checkpoint that it goes on from. UserError with the saved value as the
/// nearest valid choice where a change could not take effect, or not from the start as the numbers
/// so far did: parameters, heads, precision, seed, tokenizer, what batches are measured in. Returns
/// all others. A checkpoint that does not hold what to compare with (converted, or of an earlier
/// version) is compared in the rest.
std::vector<ResumeChange> check_resume(const strategy::Design& design, const Corpus& corpus,
                                       const std::string& modules_hash,
                                       const checkpoint::CheckpointReader& resume);

Json to_json(const std::vector<ResumeChange>& changes);

}  // namespace strait
