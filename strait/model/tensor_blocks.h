// The blocks of GPT-2 and Llama in ATen operators: they work on the addresses of a device, and make
// the same numbers as the hand-written blocks up to rounding.
//
// A call's buffers are addresses of the device, with three exceptions in host memory: the batch
// itself, Batch::sequences and Call::loss_count. Tokens are not checked: whoever brings them to the
// device does that. Saved bundles and caches are laid out as those of the hand-written blocks
// (shape/block_layout.h). Between calls nothing is kept; a call takes memory of LibTorch's own for
// its intermediate results, beside the workspace, which it leaves alone. bf16: LayerNorm's
// parameter gradients are rounded to bf16 on a GPU, as its operators give them.
#pragma once

#include "strait/base/provided.h"
#include "strait/model/block.h"
#include "strait/tensor/device.h"

namespace strait::model {

/// Replaces the blocks of `model`, which computes in `dtype`, by tensor blocks. `device` outlives
/// the model. Forwards of some segments alone need a saved bundle; backward_input and
/// backward_weight throw UserError: the backward is not split.
inline constinit Provided<void(Model& model, tensor::Device& device, Dtype dtype)>
    use_tensor_blocks;

}  // namespace strait::model
