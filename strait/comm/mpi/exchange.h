// Collectives of one communicator over MPI processes. The schedules of strait/collective run as
// they stand: a transfer inside a host is a read of the other's window, one between hosts a
// message.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "strait/comm/call_form.h"
#include "strait/comm/mpi/mpi_site.h"

namespace strait::comm {

/// What a member sent.
struct SentBytes {
  std::vector<int64_t> by_level;
  int64_t network =
      0;  // of it, to other hosts; the rest went through memory that a host's ranks share
};

/// One thread at a time.
class Exchange {
 public:
  /// `members`: ranks, ascending, this one among them. `number`: communicator_number of the
  /// communicator.
  Exchange(MpiSite& site, std::vector<int64_t> members, uint64_t number);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Runs collective `sequence` (0, 1, ...; all members the same) and blocks until this member's
  /// buffers are its caller's again. Returns what it counted: transfers inside the host that this
  /// member read, messages that it sent. Throws Timeout, PeerLost, UserError when the members
  /// disagree; the destination is undefined then and no further call may be made.
  SentBytes run(const Call& call, int64_t sequence);

  const std::vector<int64_t>& members() const { return members_; }
  int64_t position() const { return position_; }
  /// Of a message between this communicator's members; `pairwise`: sends and receives of the
  /// program.
  int tag(bool pairwise) const;
  HostWait wait_of(const Call& call) const;

 private:
  class Run;
  /// What a call of this form moves on this member. Kept, so that the steady state computes
  /// nothing.
  struct Plan {
    CallForm form;
    std::vector<collective::Transfer> pulls;   // to this member, by step
    std::vector<collective::Transfer> pushes;  // to members of other hosts, by step
    uint64_t digest = 0;
    int64_t steps = 1;
    /// [step]: its messages need nothing that those of the step before bring.
    std::vector<bool> early;
  };
  using PlanKey = std::tuple<Operation, Dtype, bool, int64_t, std::vector<int64_t>>;
  const Plan& plan_of(const Call& call);
  void fill(Plan& plan) const;
  /// Whether messages that are taken at step - 1 change what is sent at `step`.
  bool waits_for_messages(const Plan& plan, int64_t step) const;
  /// Memory of this rank's window that grows and stays.
  struct Reserve {
    char* data = nullptr;
    int64_t bytes = 0;
  };
  char* grow(Reserve& reserve, int64_t bytes);
  bool is_here(int64_t member) const { return places_[member] >= 0; }

  MpiSite& site_;
  const std::vector<int64_t> members_;
  const uint64_t number_;
  int64_t position_ = 0;
  std::vector<int64_t> places_;  // by member: place on this host or -1
  std::vector<int64_t> locals_;  // members on this host
  std::vector<int64_t> levels_;  // by member: level of the link to this one
  int64_t channel_ = 0;
  std::map<PlanKey, Plan> plans_;
  Reserve source_, result_, scratch_, row_;
  std::vector<char> landing_[2];  // messages that are to be summed, of even and of odd steps
  std::vector<Message*> under_way_;
};

}  // namespace strait::comm
