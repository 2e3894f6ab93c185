// What `strait inspect` reports.
#pragma once

#include <string>

#include "strait/base/json.h"

namespace strait::checkpoint {

/// The inspect object of the command line's JSON: path, complete, step, tokens, ranks, placement,
/// mesh, model, parameters, parameter_hash, files[{name, bytes, hash, ok}], tensors[{name, dtype,
/// shape, file}], states[{name, dtype, elements, bytes, shards, senders}]. `path` is a checkpoint
/// or a run folder (its newest checkpoint). `complete`: every listed file has its size; `ok`: and
/// its hash. `bytes` and `hash` are those of the manifest. Tensors are the model's parameters;
/// `file` is the rank file where the parameter begins. States are all that is saved, by name:
/// elements over all units and senders. UserError when there is no checkpoint or its manifest is
/// not valid. `parameter_hash`: null where a file is damaged or weights are missing. Cost: reads
/// all files once, those of weights twice unless the manifest has their hash.
Json inspect(const std::string& path);

}  // namespace strait::checkpoint
