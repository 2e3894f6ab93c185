// NCCL's results as our failures.
#pragma once

#include <nccl.h>

#include <string>

#include "strait/comm/failure.h"

namespace strait::comm {

/// Nothing for ncclSuccess and ncclInProgress. ncclRemoteError and ncclSystemError, which NCCL
/// gives when the other side is gone, are PeerLost; the rest is an internal error. Messages name
/// the call and the rank.
void check_nccl(ncclResult_t result, const char* what, const Call& call, int64_t rank,
                ncclComm_t communicator);

}  // namespace strait::comm
