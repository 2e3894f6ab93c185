// One member's end of one communicator whose bytes go through NCCL.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "strait/comm/call_form.h"
#include "strait/comm/call_queue.h"
#include "strait/comm/communicator.h"
#include "strait/comm/nccl/nccl_link.h"
#include "strait/tensor/device.h"
#include "strait/topology/cluster.h"

namespace strait::comm {

/// Executes the schedules of strait/collective as NCCL's sends and receives, one group per step,
/// and sums in their order: the same bits and the same bytes on every level as the other backends.
/// Calls on host memory go to the control world's communicator of the same members.
class NcclCommunicator final : public Communicator, private CallRunner {
 public:
  struct Site {
    const Cluster& cluster;
    tensor::Device& device;
    World& control;
  };
  NcclCommunicator(const Site& place, const std::vector<int64_t>& members, int64_t lane);
  ~NcclCommunicator() override;

  int64_t position() const override { return control_.position(); }
  int64_t size() const override { return static_cast<int64_t>(members_.size()); }
  Ticket start(const Call& call, const std::vector<Ticket>& after) override;
  void drain_ledger(Ledger& ledger) override;

 private:
  /// A call, and the caller's work on the device that it waits for.
  struct Ready final : Ticket::State {
    explicit Ready(std::shared_ptr<const tensor::Mark> the_mark) : mark(std::move(the_mark)) {}
    bool done() const override { return mark->done(); }
    void wait() override;
    const std::shared_ptr<const tensor::Mark> mark;
  };
  void run(const std::shared_ptr<QueuedCall>& queued) override;
  SteadyTime tend() override { return SteadyTime::max(); }
  void waiting(const QueuedCall&) override {}
  void waited(const QueuedCall&) override {}
  uint64_t number() const override { return number_; }

  bool for_control(const Call& call) const;
  int64_t rank() const { return members_[position()]; }
  void await(QueuedCall& queued, SteadyTime deadline) const;
  void execute(const Call& call, SteadyTime deadline);

  /// One step of a schedule: what goes out, what comes in, and what is made of it.
  struct Step;
  void execute_alone(const Call& call) const;
  void run_step(const Step& step, const Call& call, const CallForm& form, SteadyTime deadline);
  char* address(const Call& call, const CallForm& form, collective::Place place, int64_t offset);
  void count(const Call& call, int64_t peer, int64_t bytes);

  const Site place_;
  const std::vector<int64_t> members_;
  const uint64_t number_;
  Communicator& control_;
  const std::unique_ptr<tensor::Queue> own_;
  NcclLink link_;
  struct Buffer {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  char* grow(Buffer& buffer, int64_t bytes);
  Buffer staged_, partial_, landing_;
  std::mutex ledger_mutex_;
  Ledger ledger_;
  const std::shared_ptr<CallQueue> queue_;
};

}  // namespace strait::comm
