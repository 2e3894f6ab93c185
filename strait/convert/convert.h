// `strait convert`: one model from one form of storing it into another.
#pragma once

#include <string>

#include "strait/base/json.h"

namespace strait::convert {

/// Converts `from` into `to` and returns the members of the command's JSON: from, to, from_form,
/// to_form, step, parameters, parameter_hash, files[{name, bytes, hash}], notes[].
///
/// `from`: a checkpoint or run folder, a .safetensors file that this wrote, or a Hugging Face
/// folder. `form`: "checkpoint", "safetensors", "hf", or "" for what `to` suggests: a name that
/// ends with .safetensors is such a file; otherwise a checkpoint becomes a Hugging Face folder, and
/// anything else a checkpoint in the run folder `to`. `to` must not exist. The model is held in
/// memory: 12 bytes per parameter in fp32, 4 where only weights are wanted. UserError for a form
/// that does not exist or does not fit, and as the readers; InputOutputError when the system fails.
/// Data become tokens in token_files.h.
Json convert(const std::string& from, const std::string& to, const std::string& form);

/// Whether `path` holds a model in one of the forms that convert reads.
bool holds_model(const std::string& path);

}  // namespace strait::convert
