// Blocks of a chain of TorchScript files (shape/modules.h).
#pragma once

#include <memory>

#include "strait/base/provided.h"
#include "strait/model/block.h"
#include "strait/shape/modules.h"

namespace strait::model {

/// Block `index` of `shape`, whose modules are there, as an AutogradBlock. Loads its file, checks
/// it and runs it once on zeros. UserError naming the file when it is no TorchScript file, when its
/// parameters or the shape of its output are not those of the manifest, when it draws random
/// numbers, reads or writes files, prints, or changes a buffer.
///
/// The file's own parameters are not kept: each call brings the unit's.
inline constinit Provided<std::unique_ptr<Block>(const ModelShape& shape, int64_t index,
                                                 Dtype dtype)>
    make_module_block;

}  // namespace strait::model
