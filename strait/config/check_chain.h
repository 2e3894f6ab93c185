// Checks of runs whose model is a chain with sizes of its own: modules of a folder, a U-Net.
#pragma once

#include "strait/config/problems.h"
#include "strait/config/run.h"

namespace strait {

/// Whether the family's blocks are a chain with sizes of its own.
bool is_chain(const Run& run);
/// Blocks of the chain that stages of a pipeline may share: all but the first and the last.
int64_t middle_blocks(const Run& run);
/// What they are called in messages: "transformer blocks".
const char* middle_blocks_name(const Run& run);

/// Adds to `problems` the keys that say otherwise than the chain, or cannot act on it.
void check_chain(const Run& run, Problems& problems);
/// Keys of model.unet, where the model is another. UserError naming the key.
void check_unet_effect(const Run& run);
/// Images and a U-Net belong together. UserError (data.path, or model.unet.*) with the nearest
/// valid value.
void check_images(const Run& run);

}  // namespace strait
