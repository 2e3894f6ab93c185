// Gloo through LibTorch's c10d, as a peer of the collectives.
#pragma once

#include <memory>
#include <string>

#include "strait/base/provided.h"
#include "strait/comm/mpi/mpi_world.h"
#include "strait/measure/collective_run.h"

namespace strait::measure {

/// missing() is the same on all ranks.
class GlooPeer {
 public:
  virtual ~GlooPeer() = default;
  /// Why it cannot run; empty when it can.
  virtual std::string missing() const = 0;
  virtual std::string version() const = 0;
  virtual void run() = 0;
};

/// Collective.
inline constinit Provided<std::unique_ptr<GlooPeer>(const CollectiveCase& collective,
                                                    comm::MpiSession& session, int64_t part)>
    make_gloo_peer;

}  // namespace strait::measure
