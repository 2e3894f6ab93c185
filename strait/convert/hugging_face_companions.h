// The small files beside the weights of a Hugging Face folder, which its generation and its
// tokenizer read.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "strait/shape/options.h"

namespace strait::convert {

/// Names and contents of generation_config.json, tokenizer_config.json and special_tokens_map.json.
/// A text ends with the token of the end of a document; without one the files name
/// none. `tokenizer_json` names the token of the number `end_of_document` (-1: none).
std::vector<std::pair<std::string, std::string>> companion_files(const ShapeOptions& shape,
                                                                 const std::string& tokenizer_json,
                                                                 int64_t end_of_document);

/// Whether a file of this name goes with a model: tokenizer, generation, special tokens, but not
/// tokenizer.json. A name with a path in it never does.
bool is_companion(const std::string& name);

/// The files of tokenizer, generation and special tokens that are in `folder`, but tokenizer.json:
/// name and contents. None when there is no such folder. UserError naming the file: none that can
/// be read whole, or above 64 MiB.
std::map<std::string, std::string> read_companions(const std::string& folder);

/// Where a run folder keeps those of the model that it was imported from.
std::string companions_folder(const std::string& run_dir);

/// That of the run folder in which a checkpoint lies.
std::string companions_beside(const std::string& checkpoint);

}  // namespace strait::convert
