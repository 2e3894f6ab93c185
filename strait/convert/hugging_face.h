// GPT-2 and Llama as Hugging Face's transformers keeps them: a folder with config.json,
// tokenizer.json and model.safetensors, or shards listed by model.safetensors.index.json.
//
// GPT-2's linear layers are stored there as Conv1D, [in, out]; ours are [out, in]. Llama's
// projections of queries, keys and values are rows of one matrix here; their order within a head is
// the same. Names with or without the prefix "transformer." or "model." are read, with it are
// written. A config.json that asks for what our model does not compute is refused by name.
#pragma once

#include <string>
#include <vector>

#include "strait/convert/model_state.h"

namespace strait::convert {

/// Reads weights in F32 (F16 and BF16 are widened, without loss) or F64. Step 0, no moments, run
/// file of defaults. UserError naming the file and the tensor or key: unknown, missing, of another
/// shape, dtype or function; a head that is tied by config.json but differs; a vocabulary of
/// another size than the tokenizer's.
ModelState read_hugging_face(const std::string& folder);

/// Writes the folder, which must not exist, under a hidden name first. Biases that the model does
/// not have are zeros. InputOutputError when the system fails; nothing is left then.
std::vector<checkpoint::FileRecord> write_hugging_face(ModelState& state,
                                                       const std::string& folder);

}  // namespace strait::convert
