#include "strait/comm/nccl/nccl_error.h"

#include <fmt/format.h>

namespace strait::comm {

void check_nccl(ncclResult_t result, const char* what, const Call& call, int64_t rank,
                ncclComm_t communicator) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* const detail = ncclGetLastError(communicator);
  const std::string text =
      fmt::format("{}: NCCL: {}: {}{}{}", describe(call, rank), what, ncclGetErrorString(result),
                  detail && *detail ? ": " : "", detail ? detail : "");
  const bool lost = result == ncclRemoteError || result == ncclSystemError;
  raise(Failure{lost ? Failure::Kind::kPeerLost : Failure::Kind::kInternal, text,
                place_of(call, lost ? -1 : rank)});
}

}  // namespace strait::comm
