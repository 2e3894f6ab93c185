// What a family of models looks like in Hugging Face's transformers: names, layouts and
// config.json.
#pragma once

#include <string>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/base/json.h"
#include "strait/shape/shape.h"
#include "strait/tokenizer/tokenizer.h"

namespace strait::convert {

/// One tensor of theirs, which is a range of rows of one parameter of ours.
struct ForeignPart {
  std::string name;  // without the family's prefix
  std::vector<int64_t> dims;
  bool prefixed = true;     // lm_head.weight stands beside the prefixed ones
  bool transposed = false;  // Conv1D: [in, out]; ours are [out, in]
};

class ForeignFamily {
 public:
  virtual ~ForeignFamily() = default;
  /// "GPT-2"
  virtual std::string title() const = 0;
  /// config.json's "model_type".
  virtual std::string model_type() const = 0;
  /// config.json's "vocab_size", or what stands for it where it is absent; 0: one per token.
  virtual int64_t vocabulary_rows(const Json& config, const std::string& path) const;
  /// Names are read with or without it and written with it.
  virtual std::string prefix() const = 0;
  /// The token embedding, which a tied head repeats.
  virtual std::string embedding() const = 0;
  /// The tensors whose rows, one after the other, are `parameter` of `model`. InternalError for a
  /// parameter that the family does not have.
  virtual std::vector<ForeignPart> parts(const ModelShape& model,
                                         const ParameterShape& parameter) const = 0;
  /// Tensors without meaning that old files carry beside the weights, by name without prefix.
  virtual bool is_ignored(const std::string& name) const = 0;
  /// The parameters that their model has for `model`: with biases where theirs always has them.
  virtual ModelShape exported(const ModelShape& model) const = 0;
  virtual Json config(const ShapeOptions& shape, Dtype dtype, const Tokenizer& tokenizer,
                      std::vector<std::string>& notes) const = 0;
  /// Sizes from config.json, checked against what our model computes. `notes` gets what is not
  /// taken over. UserError naming `path` and the key.
  virtual ShapeOptions shape(const Json& config, const std::string& path,
                             std::vector<std::string>& notes) const = 0;
};

const ForeignFamily& gpt2_family();
/// Llama and the families like it; null for others.
const ForeignFamily* rotary_family(const std::string& family);

/// By model.family of ours. InternalError for others.
const ForeignFamily& foreign_family(const std::string& family);
/// model.family by config.json's model_type; gpt2 where it is absent beside GPT-2's sizes, as in
/// its first files, which `notes` gets. UserError naming `path` and the key.
std::string family_of_config(const Json& config, const std::string& path,
                             std::vector<std::string>& notes);

}  // namespace strait::convert
