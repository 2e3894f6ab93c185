// What LibTorch takes and does when it runs the operations of a block of a U-Net: the code of
// model/unet_layers.cpp and of the blocks around it, written down on a tape that counts.
#pragma once

#include <cstdint>

#include "strait/base/dtype.h"
#include "strait/base/library_work.h"
#include "strait/shape/unet_parts.h"

namespace strait {

/// Of one op of UnetParts::forward() or backward(), for `batch` images. Nothing is kept from a
/// forward to a backward: the latter runs again what it needs. Convolutions in fp32, and in bf16 on
/// processors with AVX-512, take what oneDNN does for its layouts, all others and, of one image,
/// small ones a whole unfolded map. What oneDNN has beside its layouts in bf16 is that of one
/// thread on tiles, to a tenth. An upper bound is told of 1 x 1 convolutions of fewer than 16
/// images on one thread, which need no layout. Statistics of norms, vectors of weights and what is
/// as small are left out. Cost: O(operations of the block), microseconds.
LibraryWork unet_work(const UnetParts& parts, const UnetOp& op, int64_t batch, Dtype dtype);

}  // namespace strait
