// What data.path names: text, JSON-lines, or tokens of llm.c or Megatron.
#pragma once

#include <string>
#include <vector>

#include "strait/data/options.h"

namespace strait {

enum class DataForm { kText, kJsonLines, kLlmc, kMegatron, kSynthetic };

/// "text", "JSON-lines", "llm.c shards", "Megatron pairs", "synthetic data".
const char* name_of(DataForm form);

struct DataFiles {
  DataForm form = DataForm::kText;
  /// In the order of their paths; of Megatron's pairs what stands before .bin and .idx.
  std::vector<std::string> training;
  /// In a folder the files that have the word val, valid or validation in their names, between '_',
  /// '-' and '.'; then they are the validation part and validation_share does not cut. None of
  /// text.
  std::vector<std::string> validation;
};

/// Recognises the files by content and ending:
///   synthetic   "synthetic:" and what to make: no file
///   llm.c       the magic number, or .bin without an .idx beside it
///   Megatron    an .idx or .bin where both are there, or what stands before the dot
///   JSON-lines  see is_json_lines; .json beside text files is text
///   text        anything else
/// A folder must hold one form; a tokenizer.json in it is no data. UserError (key data.path):
/// several forms, with a file of each; nothing but validation files, or but a tokenizer.json.
DataFiles find_data(const DataOptions& options);

/// UserError when an option that is not at its default has no effect on `files`: the key, why, and
/// what to choose.
void check_data_options(const DataOptions& options, const DataFiles& files);

}  // namespace strait
