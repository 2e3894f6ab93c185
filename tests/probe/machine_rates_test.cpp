// Rates are measured in a moment, remembered, and taken again where the memory is of no use.
#include "strait/probe/machine_rates.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "strait/base/file.h"
#include "strait/threads/cores.h"
#include "tests/sanitized.h"

namespace strait::measure {
namespace {

namespace fs = std::filesystem;

class MachineRates : public ::testing::Test {
 protected:
  MachineRates()
      : folder_(
            (fs::temp_directory_path() / ("strait-rates-" + std::to_string(::getpid()))).string()) {
  }
  ~MachineRates() override { fs::remove_all(folder_); }

  std::string folder_;
};

TEST_F(MachineRates, EachTypeHasItsOwnRates) {
  const MeasuredRates fp32 = measure_rates(Dtype::kFloat32, 1);
  EXPECT_GT(fp32.flops_per_second_fp32, 1e9 / test::kSlowdown);
  EXPECT_GT(fp32.model_flops_per_second_fp32, 0);
  EXPECT_GT(fp32.memory_bytes_per_second, 1e8 / test::kSlowdown);
  EXPECT_EQ(fp32.flops_per_second_bf16, 0);
  EXPECT_EQ(fp32.cores_per_rank, 1);
  EXPECT_GT(fp32.attention_flops_per_second_fp32, 1e8 / test::kSlowdown);
  EXPECT_LE(fp32.attention_flops_per_second_fp32, fp32.flops_per_second_fp32);  // never passed
  EXPECT_EQ(fp32.attention_flops_per_second_bf16, 0);
  EXPECT_EQ(fp32.weights_per_second_bf16, 0);
  const MeasuredRates bf16 = measure_rates(Dtype::kBfloat16, 1);
  EXPECT_GT(bf16.flops_per_second_bf16, 0);
  EXPECT_GT(bf16.attention_flops_per_second_bf16, 0);
  const MeasuredRates fp64 = measure_rates(Dtype::kFloat64, 1);
  EXPECT_GT(fp64.flops_per_second_fp64, 0);
  EXPECT_GT(fp64.attention_flops_per_second_fp64, 0);
}

TEST_F(MachineRates, MeasuringIsBrief) {
  // Time of the processor, which other programs do not lengthen; all cores work at once. Half of it
  // is measured by the clock, half is a piece of work, allowed its time at 100 GFLOP/s.
  const int64_t cores = available_cores();
  double rate = 0;
  const std::clock_t began = std::clock();
  for (int call = 0; call < 3; ++call)
    rate = std::max(rate, measure_rates(Dtype::kFloat32, cores).flops_per_second_fp32);
  const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  const double slower = std::max(1.0, 100e9 / rate);
  EXPECT_LT(seconds / static_cast<double>(3 * cores), 0.15 * (1 + slower) * test::kSlowdown);
}

TEST_F(MachineRates, TheyAreRememberedByTypeAndCores) {
  const MeasuredRates first = remembered_rates(folder_, Dtype::kFloat32, 1);
  const MeasuredRates again = remembered_rates(folder_, Dtype::kFloat32, 1);
  EXPECT_EQ(first.flops_per_second_fp32, again.flops_per_second_fp32);
  EXPECT_EQ(first.model_flops_per_second_fp32, again.model_flops_per_second_fp32);
  EXPECT_EQ(first.attention_flops_per_second_fp32, again.attention_flops_per_second_fp32);
  EXPECT_EQ(first.weights_per_second_fp32, again.weights_per_second_fp32);
  EXPECT_EQ(first.memory_bytes_per_second, again.memory_bytes_per_second);
  EXPECT_NE(rates_file(folder_, Dtype::kFloat32, 1), rates_file(folder_, Dtype::kFloat32, 2));
  EXPECT_NE(rates_file(folder_, Dtype::kFloat32, 1), rates_file(folder_, Dtype::kBfloat16, 1));
  EXPECT_NE(rates_file(folder_, Dtype::kBfloat16, 1, kernel::NarrowProducts::kWidened),
            rates_file(folder_, Dtype::kBfloat16, 1, kernel::NarrowProducts::kPaired));
}

TEST_F(MachineRates, ThoseOfLibTorchAreMeasuredWhereTheyAreWanted) {
  const auto remembered = [&](bool library) {
    return remembered_rates(folder_, Dtype::kFloat32, 1, kernel::NarrowProducts::kAutomatic,
                            library);
  };
  const MeasuredRates without = remembered(false);
  EXPECT_EQ(without.library_flops_per_second, 0);
  EXPECT_EQ(without.library_activations_per_second, 0);
  EXPECT_EQ(without.library_calls_per_second, 0);
  const MeasuredRates with = remembered(true);
  EXPECT_GT(with.library_flops_per_second, 1e8 / test::kSlowdown);
  EXPECT_GT(with.library_activations_per_second, 1e6 / test::kSlowdown);
  EXPECT_GT(with.library_calls_per_second, 1e3 / test::kSlowdown);
  for (const bool library : {false, true})
    EXPECT_EQ(rates_json(remembered(library)).dump(), rates_json(with).dump());
}

TEST(Rates, OfAShareOfACoreAreThatShareOfThem) {
  const Json whole = rates_json(remembered_rates("", Dtype::kFloat32, 1));
  const Json half = rates_json(scaled(rates_from_json(whole), 0.5));
  for (const auto& [name, rate] : whole.as_object())
    EXPECT_EQ(half.at(name).as_number(), 0.5 * rate.as_number()) << name;
}

TEST_F(MachineRates, AFileOfNoUseIsReplaced) {
  fs::create_directories(folder_);
  const std::string file = rates_file(folder_, Dtype::kFloat32, 1);
  for (const char* text : {"", "{", "{\"fp32_flops_per_second\": \"fast\"}"}) {
    std::ofstream(file) << text;
    EXPECT_GT(remembered_rates(folder_, Dtype::kFloat32, 1).flops_per_second_fp32, 0) << text;
    EXPECT_NE(read_file(file), text);
  }
}

TEST_F(MachineRates, ManyAtOnceLeaveOneWholeFile) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back(
        [&] { EXPECT_GT(remembered_rates(folder_, Dtype::kFloat32, 1).flops_per_second_fp32, 0); });
  threads.clear();
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator{}), 1);
  EXPECT_GT(remembered_rates(folder_, Dtype::kFloat32, 1).flops_per_second_fp32, 0);
}

TEST_F(MachineRates, WithoutAFolderTheyAreMeasured) {
  EXPECT_GT(remembered_rates("", Dtype::kFloat32, 1).flops_per_second_fp32, 0);
  EXPECT_GT(remembered_rates("/proc/none", Dtype::kFloat32, 1).flops_per_second_fp32, 0);
}

}  // namespace
}  // namespace strait::measure
