// The nccl backend over the grid of collectives, ranks as threads with a CUDA device each. Only in
// builds with NCCL.
#include "strait/comm/nccl/nccl_world.h"

#include <gtest/gtest.h>

#include "strait/tensor/open_device.h"
#include "tests/comm/collective_grid.h"
#include "tests/comm/on_device.h"

namespace strait::comm {
namespace {

/// Calls body(communicator over all ranks) on `ranks` threads with a device each.
template <class Body>
void on_devices(int64_t ranks, const Body& body) {
  const Cluster cluster = test_cluster(ranks);
  const auto control = make_thread_worlds(ranks, cluster);
  run_ranks(*control, [&](World& world) {
    const auto device = tensor::open_device("cuda", world.rank());
    NcclWorld values(world, cluster, *device);
    OnDevice carried(values.communicator(all_ranks(ranks), 0), *device);
    body(carried);
  });
}

TEST(Nccl, OneRankCopies) {
  if (tensor::num_cuda_devices() < 1) GTEST_SKIP() << "needs a CUDA device";
  on_devices(1, [](Communicator& group) {
    CollectiveGrid{{1, Algorithm::kDirect, false, true}}.run<float>(group);
  });
}

TEST(Nccl, CollectivesEqualPlainLoops) {
  const int64_t devices = tensor::num_cuda_devices();
  if (devices < 2) GTEST_SKIP() << "needs two CUDA devices, there are " << devices;
  for (const bool in_place : {false, true})
    for (const bool accumulate : {false, true})
      on_devices(2, [&](Communicator& group) {
        const CollectiveGrid grid{{2, Algorithm::kDirect, in_place, accumulate}};
        grid.run<float>(group);
        grid.run<int64_t>(group);
      });
}

}  // namespace
}  // namespace strait::comm
