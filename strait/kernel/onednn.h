// bf16 products by oneDNN, where it is built in. LibTorch loads it anyway.
#pragma once

#include <string>

#include "strait/kernel/gemm.h"

namespace strait::kernel {

/// Whether it is built in and has bf16 products for this processor.
bool has_onednn();
/// "oneDNN 2.6.3", or "" when this library was built without it.
std::string onednn_version();

/// As gemm, but sums may be ordered by `threads` and by the sizes. Each thread keeps a plan per
/// shape from its first call on. InternalError when oneDNN refuses, or is not built in. Defined for
/// C = Bfloat16 and float.
template <class C>
void onednn_gemm(const GemmCall<Bfloat16, C>& call, int threads);

}  // namespace strait::kernel
