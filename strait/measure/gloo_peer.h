// Gloo through LibTorch's c10d, as a peer of the collectives.
#pragma once

#include <memory>
#include <string>

#include "strait/comm/mpi/mpi_world.h"
#include "strait/measure/collective_run.h"

namespace strait::measure {

/// Construction is collective. missing() is the same on all ranks.
class GlooPeer {
 public:
  GlooPeer(const CollectiveCase& collective, comm::MpiSession& session, int64_t part);
  ~GlooPeer();
  /// Why it cannot run; empty when it can.
  const std::string& missing() const { return missing_; }
  std::string version() const;
  void run();

 private:
  struct Group;
  std::unique_ptr<Group> group_;
  std::string missing_;
};

}  // namespace strait::measure
