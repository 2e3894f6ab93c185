// The stand-in for a GPU: addresses that nobody reads but through the device, and sums in order on
// it.
#include "strait/tensor/host_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>

#include "strait/base/bfloat16.h"
#include "strait/base/errors.h"
#include "strait/comm/sums.h"

namespace strait::tensor {
namespace {

constexpr int64_t kShadow = 1 << 20;

TEST(HostDevice, KeepsWhatIsCopiedToItAndGivesItBack) {
  for (const int64_t shadow : {int64_t{0}, kShadow}) {
    HostDevice device(shadow);
    void* const buffer = device.allocate(1000);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer) % 64, 0u);
    std::vector<int32_t> values(250), back(250);
    std::iota(values.begin(), values.end(), 7);
    copy_bytes(&device, values.data(), buffer, 1000);
    EXPECT_EQ(device.view(buffer, {250}, Dtype::kInt32).sum().item<int64_t>(),
              std::accumulate(values.begin(), values.end(), int64_t{0}));
    copy_bytes(&device, buffer, back.data(), 1000);
    EXPECT_EQ(back, values);
    fill_zero(&device, static_cast<char*>(buffer) + 4, 4);
    copy_bytes(&device, buffer, back.data(), 12);
    EXPECT_EQ(back[0], 7);
    EXPECT_EQ(back[1], 0);
    EXPECT_EQ(back[2], 9);
    EXPECT_TRUE(device.holds(buffer));
    EXPECT_TRUE(device.holds(static_cast<char*>(buffer) + 999));
    EXPECT_FALSE(device.holds(static_cast<char*>(buffer) + 1000));
    EXPECT_FALSE(device.holds(values.data()));
    device.release(buffer);
    EXPECT_FALSE(device.holds(buffer));
  }
}

TEST(HostDevice, BuffersDoNotOverlapAndTheShadowIsTheLimit) {
  HostDevice device(kShadow);
  char* const first = static_cast<char*>(device.allocate(100));
  char* const second = static_cast<char*>(device.allocate(kShadow / 2));
  EXPECT_GE(second, first + 100);
  EXPECT_THROW(device.allocate(kShadow / 2), NothingFits);
  device.release(second);
  EXPECT_EQ(device.allocate(kShadow / 2), second);
}

TEST(HostDeviceDeathTest, ShadowedMemoryCannotBeReadAsPlainMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        HostDevice device(kShadow);
        *static_cast<volatile char*>(device.allocate(64)) = 1;
      },
      "");
}

template <class T>
void expect_same_sums(Dtype dtype) {
  HostDevice device(kShadow);
  for (const int64_t count : {0, 1, 1000}) {
    for (const size_t num_sources : {1, 2, 5}) {
      for (const bool accumulate : {false, true}) {
        for (const bool in_place : {false, true}) {  // the last source is the destination
          std::vector<std::vector<T>> values(num_sources + 1);
          std::vector<void*> buffers;
          for (size_t k = 0; k <= num_sources; ++k) {
            for (int64_t i = 0; i < count; ++i)
              values[k].push_back(static_cast<T>(
                  100.0f / static_cast<float>(1 + (i * 7 + 3 * static_cast<int64_t>(k)) % 97)));
            buffers.push_back(device.allocate(count * dtype_bytes(dtype)));
            copy_bytes(&device, values[k].data(), buffers[k], count * dtype_bytes(dtype));
          }
          std::vector<const void*> plain, addresses;
          for (size_t k = 0; k < num_sources; ++k) {
            plain.push_back(values[k].data());
            addresses.push_back(buffers[k]);
          }
          const size_t target = in_place ? num_sources - 1 : num_sources;
          comm::sum_in_order(dtype, plain, values[target].data(), count, accumulate);
          sum_in_order(device, {dtype, addresses, buffers[target], count, accumulate});
          std::vector<T> result(static_cast<size_t>(count));
          copy_bytes(&device, buffers[target], result.data(), count * dtype_bytes(dtype));
          for (int64_t i = 0; i < count; ++i)
            ASSERT_EQ(static_cast<double>(result[i]), static_cast<double>(values[target][i]))
                << dtype_name(dtype) << " " << num_sources << " " << accumulate << in_place;
        }
      }
    }
  }
}

TEST(OrderedSum, GivesTheBitsOfTheProcessorsKernel) {
  expect_same_sums<uint8_t>(Dtype::kByte);
  expect_same_sums<int32_t>(Dtype::kInt32);
  expect_same_sums<int64_t>(Dtype::kInt64);
  expect_same_sums<float>(Dtype::kFloat32);
  expect_same_sums<double>(Dtype::kFloat64);
  expect_same_sums<Bfloat16>(Dtype::kBfloat16);
}

TEST(OrderedSum, RefusesHalfPrecision) {
  HostDevice device;
  EXPECT_THROW(sum_in_order(device, {Dtype::kFloat16, {nullptr}, nullptr, 0, false}), UserError);
}

}  // namespace
}  // namespace strait::tensor
