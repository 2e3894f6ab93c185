#include "strait/comm/nccl/nccl_link.h"

#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "strait/comm/nccl/nccl_error.h"

namespace strait::comm {
namespace {

constexpr auto kLookAgain = std::chrono::microseconds(20);

bool past(SteadyTime deadline) { return std::chrono::steady_clock::now() > deadline; }

}  // namespace

NcclLink::~NcclLink() { abort(); }

void NcclLink::abort() {
  if (communicator_) ncclCommAbort(communicator_);
  communicator_ = nullptr;
}

void NcclLink::give_up(const Call& call) const {
  raise(timeout(call, rank_, {}, {}, {rank_, 0, -1, {}}));
}

/// A call of a communicator that does not block has begun when it returns, and ended when this
/// does.
void NcclLink::settle(const char* what, const Call& call, SteadyTime deadline) {
  ncclResult_t state = ncclInProgress;
  while (true) {
    check_nccl(ncclCommGetAsyncError(communicator_, &state), what, call, rank_, communicator_);
    if (state != ncclInProgress) break;
    if (past(deadline)) {
      abort();
      give_up(call);
    }
    std::this_thread::sleep_for(kLookAgain);
  }
  try {
    check_nccl(state, what, call, rank_, communicator_);
  } catch (...) {
    abort();
    throw;
  }
}

void NcclLink::join(Communicator& control, const Call& call) {
  ncclUniqueId id;
  std::memset(&id, 0, sizeof(id));
  if (control.position() == 0)
    check_nccl(ncclGetUniqueId(&id), "making an id", call, rank_, nullptr);
  Call hand;
  hand.operation = Operation::kBroadcast;
  hand.dtype = Dtype::kByte;
  hand.counts = {static_cast<int64_t>(sizeof(id))};
  hand.source = hand.destination = &id;
  hand.deadline_seconds = call.deadline_seconds;
  hand.step = call.step;
  hand.label = "hand round NCCL's id for " + call.label;
  control.start(hand).wait();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const SteadyTime deadline = deadline_after(call.deadline_seconds);
  check_nccl(ncclCommInitRankConfig(&communicator_, static_cast<int>(control.size()), id,
                                    static_cast<int>(control.position()), &config),
             "joining", call, rank_, communicator_);
  settle("joining", call, deadline);
}

void NcclLink::exchange(const std::vector<NcclPiece>& sends, const std::vector<NcclPiece>& receives,
                        const Call& call, SteadyTime deadline) {
  if (sends.empty() && receives.empty()) return;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  check_nccl(ncclGroupStart(), "a group", call, rank_, communicator_);
  for (const NcclPiece& piece : sends)
    check_nccl(ncclSend(piece.data, static_cast<size_t>(piece.bytes), ncclInt8,
                        static_cast<int>(piece.peer), communicator_, stream),
               "a send", call, rank_, communicator_);
  for (const NcclPiece& piece : receives)
    check_nccl(ncclRecv(piece.data, static_cast<size_t>(piece.bytes), ncclInt8,
                        static_cast<int>(piece.peer), communicator_, stream),
               "a receive", call, rank_, communicator_);
  check_nccl(ncclGroupEnd(), "a group", call, rank_, communicator_);
  settle("a group", call, deadline);
}

void NcclLink::await(const tensor::Mark& mark, const Call& call, SteadyTime deadline) {
  while (!mark.done()) {
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(communicator_, &state), "looking", call, rank_, communicator_);
    const bool late = past(deadline);
    if (state != ncclSuccess && state != ncclInProgress) {
      try {
        check_nccl(state, "moving bytes", call, rank_, communicator_);
      } catch (...) {
        abort();
        throw;
      }
    }
    if (late) {
      abort();
      give_up(call);
    }
    std::this_thread::sleep_for(kLookAgain);
  }
}

}  // namespace strait::comm
