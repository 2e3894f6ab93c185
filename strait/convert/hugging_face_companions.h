// The small files beside the weights of a Hugging Face folder, which its generation and its
// tokenizer read.
#pragma once

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

}  // namespace strait::convert
