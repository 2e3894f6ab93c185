// Our parameters' names and Hugging Face's, and config.json.
#pragma once

#include <string>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/base/json.h"
#include "strait/config/run.h"
#include "strait/data/tokenizer.h"

namespace strait::convert {

inline constexpr const char* kPrefix = "transformer.";

struct ForeignName {
  std::string name;         // without the prefix
  bool prefixed = true;     // lm_head.weight stands beside the transformer
  bool transposed = false;  // Conv1D: [in, out]
};

/// Of "blocks.3.attention.qkv.weight": "h.3.attn.c_attn.weight", transposed. InternalError for names
/// that GPT-2 does not have.
ForeignName foreign_name(const std::string& parameter);

/// Whether a tensor without prefix is the causal mask that old files carry beside the weights.
bool is_mask(const std::string& name);

/// config.json of a model.
Json config_json(const ShapeOptions& shape, Dtype dtype, const Tokenizer& tokenizer);

/// Sizes from config.json, checked against what our model computes. `notes` gets what is not taken
/// over. UserError naming `path` and the key.
ShapeOptions shape_of_config(const Json& config, const std::string& path,
                             std::vector<std::string>& notes);

}  // namespace strait::convert
