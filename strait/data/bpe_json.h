// Hugging Face tokenizer.json <-> BpeModel.
#pragma once

#include <string>

#include "strait/base/json.h"
#include "strait/data/bpe_model.h"

namespace strait {

/// The model of a parsed tokenizer.json. Supported: model "BPE" (merges as "a b" or ["a", "b"]),
/// pre_tokenizer "ByteLevel" with GPT-2's pattern and without prefix space, no normalizer, decoder
/// and post_processor "ByteLevel" or none, special added tokens. UserError naming any other part
/// and what is supported instead, and any merge, token or number that is missing, double or out of
/// range.
BpeModel bpe_from_json(const Json& json);

/// tokenizer.json of a model; merges as "a b", which every release of that library reads.
std::string bpe_to_json(const BpeModel& model);

}  // namespace strait
