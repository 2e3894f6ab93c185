// Ranks with a CUDA device each: their values move through NCCL, everything else through the world
// that has brought them together.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "strait/comm/communicator.h"
#include "strait/comm/nccl/nccl_communicator.h"

namespace strait::comm {

/// `control` (of threads or MPI) hands round NCCL's ids and carries calls on host memory, barriers
/// and alarms; it outlives this, as does the device. No two ranks of a communicator may have the
/// same device: NCCL refuses it. An abort of another rank is heard when NCCL tells of it, or at the
/// deadline of the call under way.
class NcclWorld final : public World {
 public:
  NcclWorld(World& control, const Cluster& cluster, tensor::Device& device)
      : place_{cluster, device, control} {}

  int64_t rank() const override { return place_.control.rank(); }
  int64_t size() const override { return place_.control.size(); }
  Communicator& communicator(const std::vector<int64_t>& members, int64_t lane) override {
    auto& found = communicators_[{members, lane}];
    if (!found) found = std::make_unique<NcclCommunicator>(place_, members, lane);
    return *found;
  }
  void abort(const std::string& reason, const ErrorPlace& place, Cause cause) override {
    place_.control.abort(reason, place, cause);
  }
  bool begins_step(int64_t step, bool asked, double deadline_seconds) override {
    return place_.control.begins_step(step, asked, deadline_seconds);
  }
  WaitRow* waits() override { return place_.control.waits(); }

 private:
  const NcclCommunicator::Site place_;
  std::map<std::pair<std::vector<int64_t>, int64_t>, std::unique_ptr<NcclCommunicator>>
      communicators_;
};

}  // namespace strait::comm
