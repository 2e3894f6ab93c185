// One NCCL communicator: made by handing round its id, used without blocking, given up at a
// deadline.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <vector>

#include "strait/comm/communicator.h"
#include "strait/tensor/device.h"

namespace strait::comm {

/// One piece of a step, in bytes.
struct NcclPiece {
  int64_t peer = 0;  // position
  void* data = nullptr;
  int64_t bytes = 0;
};

/// One thread at a time, with a queue of the device entered and the device current.
class NcclLink {
 public:
  explicit NcclLink(int64_t rank) : rank_(rank) {}
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  bool joined() const { return communicator_ != nullptr; }
  /// Position 0 makes the id and broadcasts it over `control`, which has the same members; then all
  /// join, by the deadline of `call`.
  void join(Communicator& control, const Call& call);
  /// Hands over all sends and receives of one step as one group. Between two members they match in
  /// order.
  void exchange(const std::vector<NcclPiece>& sends, const std::vector<NcclPiece>& receives,
                const Call& call, SteadyTime deadline);
  /// Waits until `mark` is reached; Timeout at the deadline, PeerLost when NCCL says so. The
  /// communicator is aborted first then, so that nothing of it touches memory any more.
  void await(const tensor::Mark& mark, const Call& call, SteadyTime deadline);

 private:
  void settle(const char* what, const Call& call, SteadyTime deadline);
  void abort();
  [[noreturn]] void give_up(const Call& call) const;

  const int64_t rank_;
  ncclComm_t communicator_ = nullptr;
};

}  // namespace strait::comm
