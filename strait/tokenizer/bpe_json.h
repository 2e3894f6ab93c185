// Hugging Face tokenizer.json <-> BpeModel.
#pragma once

#include <string>

#include "strait/base/json.h"
#include "strait/tokenizer/bpe_model.h"

namespace strait {

/// The model of a parsed tokenizer.json, of the kinds of GPT-2, Llama 3, Qwen 2 and SmolLM2.
/// Supported: model "BPE" (merges as "a b" or ["a", "b"], ignore_merges), pre_tokenizer "ByteLevel"
/// without prefix space, with GPT-2's pattern, the same behind "Digits", or behind a "Split" by
/// GPT-2's, Llama 3's or Qwen 2's pattern, normalizer "NFC" or none, decoder "ByteLevel" or none,
/// post_processor "ByteLevel", "TemplateProcessing" of special tokens, a "Sequence" of these, or
/// none, added tokens that are special or plain text. Text never becomes a special token, so a
/// post_processor has no effect here; it is kept for other programs. UserError naming any other
/// part and what is supported instead, and any merge, token or number that is missing, double or
/// out of range.
BpeModel bpe_from_json(const Json& json);

/// tokenizer.json of a model; merges as "a b", which every release of that library reads.
std::string bpe_to_json(const BpeModel& model);

}  // namespace strait
