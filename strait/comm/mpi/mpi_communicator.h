// One member's end of one communicator over MPI processes.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "strait/comm/call_queue.h"
#include "strait/comm/communicator.h"
#include "strait/comm/mpi/exchange.h"

namespace strait::comm {

class MpiCommunicator final : public Communicator, private CallRunner {
 public:
  MpiCommunicator(MpiSite& site, const std::vector<int64_t>& members, int64_t lane);
  ~MpiCommunicator() override;

  int64_t position() const override { return exchange_.position(); }
  int64_t size() const override { return static_cast<int64_t>(exchange_.members().size()); }
  Ticket start(const Call& call, const std::vector<Ticket>& after) override;
  void run(const Call& call) override;
  void drain_ledger(Ledger& ledger) override;

  int tag() const { return exchange_.tag(false); }
  void nudge() { queue_->nudge(); }
  /// Ends the worker. Precondition: nothing is under way, or the alarm has rung.
  void stop();

 private:
  struct Outstanding {
    std::shared_ptr<QueuedCall> call;
    Message message;
    SteadyTime deadline;  // on the site's clock
  };

  void run(const std::shared_ptr<QueuedCall>& queued) override;
  SteadyTime tend() override;
  void waiting(const QueuedCall& queued) override;
  void waited(const QueuedCall& queued) override;
  uint64_t number() const override { return number_; }

  void prepare(QueuedCall& queued);
  void await(QueuedCall& queued);
  void execute(const std::shared_ptr<QueuedCall>& queued);
  void run_alone(const Call& call) const;
  void send(const std::shared_ptr<QueuedCall>& queued);
  void receive(const Call& call);
  void count(const Call& call, const SentBytes& sent);
  /// The others hear of it, and later calls of this rank fail with the same.
  void fail(QueuedCall& queued, Failure failure);
  int64_t peer_rank(const Call& call) const { return exchange_.members()[call.peer]; }

  MpiSite& site_;
  const uint64_t number_;
  Exchange exchange_;
  WaitRow& row_;
  const int row_lane_;
  int64_t begun_ = 0;  // collectives, of the thread that runs
  std::vector<Outstanding> sends_;
  std::vector<std::vector<char>> stranded_;  // targets of receives that were given up
  std::mutex ledger_mutex_;
  Ledger ledger_;
  const std::shared_ptr<CallQueue> queue_;
};

}  // namespace strait::comm
