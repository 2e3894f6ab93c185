// GPT-2 as Hugging Face's transformers keeps it: a folder with config.json, tokenizer.json and
// model.safetensors, or shards listed by model.safetensors.index.json.
//
// Linear layers are stored there as Conv1D, [in, out]; ours are [out, in]. Names with or without the
// prefix "transformer." are read, with it are written. Our model computes GELU in its tanh form
// (activation_function "gelu_new"), LayerNorm with epsilon 1e-5 and scores divided by sqrt(head width);
// a config.json that asks for anything else is refused by name.
#pragma once

#include <string>
#include <vector>

#include "strait/convert/model_state.h"

namespace strait::convert {

/// Reads weights in F32 (F16 and BF16 are widened, without loss) or F64. Step 0, no moments, run file of
/// defaults. UserError naming the file and the tensor or key: unknown, missing, of another shape,
/// dtype or function; a head that is tied by config.json but differs; a vocabulary of another size than
/// the tokenizer's.
ModelState read_hugging_face(const std::string& folder);

/// Writes the folder, which must not exist, under a hidden name first. Biases that the model does not
/// have are zeros. InputOutputError when the system fails; nothing is left then.
std::vector<checkpoint::FileRecord> write_hugging_face(ModelState& state,
                                                       const std::string& folder);

}  // namespace strait::convert
