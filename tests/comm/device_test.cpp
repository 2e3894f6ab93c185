// The threads backend on memory of a device that all ranks share: the grid of collectives_test.cpp.
#include <gtest/gtest.h>

#include "strait/tensor/host_device.h"
#include "tests/comm/collective_grid.h"
#include "tests/comm/on_device.h"
#include "tests/tensor/devices.h"

namespace strait::comm {
namespace {

class DeviceCollectives : public ::testing::TestWithParam<Case> {
 protected:
  template <class T>
  void run_grid() const {
    for (const std::string& kind : tensor::test_devices()) {
      SCOPED_TRACE(kind);
      const auto device = tensor::make_test_device(kind);
      ThreadWorldOptions options;
      options.algorithm = GetParam().algorithm;
      options.device = device.get();
      const auto worlds =
          make_thread_worlds(GetParam().ranks, test_cluster(GetParam().ranks), options);
      on_all_ranks(*worlds, [&](World&, Communicator& group) {
        OnDevice carried(group, *device);
        CollectiveGrid{GetParam()}.run<T>(carried);
      });
    }
  }
};

TEST_P(DeviceCollectives, OfFloat32) { run_grid<float>(); }
TEST_P(DeviceCollectives, OfInt64) { run_grid<int64_t>(); }

INSTANTIATE_TEST_SUITE_P(Grid, DeviceCollectives, ::testing::ValuesIn(cases()), case_name);

/// A device whose work never ends by itself.
class StuckDevice final : public tensor::HostDevice {
 public:
  struct Never final : tensor::Mark {
    bool done() const override { return false; }
  };
  std::shared_ptr<const tensor::Mark> mark() override {
    return stuck ? std::make_shared<Never>() : tensor::HostDevice::mark();
  }
  bool stuck = false;
};

TEST(DeviceDeadline, ADeviceThatDoesNotAnswerEndsTheOperation) {
  StuckDevice device;
  ThreadWorldOptions options;
  options.device = &device;
  const auto worlds = make_thread_worlds(2, test_cluster(2), options);
  device.stuck = true;
  const std::string message = message_of<Timeout>([&] {
    on_all_ranks(*worlds, [&](World&, Communicator& group) {
      Call call;
      call.operation = Operation::kAllReduce;
      call.counts = {4};
      call.source = call.destination = device.allocate(16);
      call.deadline_seconds = 0.3;
      group.start(call).wait();
    });
  });
  EXPECT_NE(message.find("all-reduce"), std::string::npos) << message;
}

TEST(DeviceMessages, SendAndReceiveCarryDeviceMemory) {
  tensor::HostDevice device(1 << 20);
  ThreadWorldOptions options;
  options.device = &device;
  const auto worlds = make_thread_worlds(2, test_cluster(2), options);
  for (const bool accumulate : {false, true}) {
    std::vector<float> result(100);
    on_all_ranks(*worlds, [&](World& world, Communicator& group) {
      std::vector<float> own(100, world.rank() == 0 ? 3.0f : 4.0f);
      void* const buffer = device.allocate(400);
      tensor::copy_bytes(&device, own.data(), buffer, 400);
      Call call;
      call.operation = world.rank() == 0 ? Operation::kSend : Operation::kReceive;
      call.counts = {100};
      call.peer = 1 - world.rank();
      call.accumulate = accumulate && world.rank() == 1;
      if (world.rank() == 0)
        call.source = buffer;
      else
        call.destination = buffer;
      group.start(call).wait();
      if (world.rank() == 1) tensor::copy_bytes(&device, buffer, result.data(), 400);
    });
    EXPECT_EQ(result, std::vector<float>(100, accumulate ? 7.0f : 3.0f));
  }
}

}  // namespace
}  // namespace strait::comm
