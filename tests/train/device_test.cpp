// Whole runs on a device: the same programs in ATen operators, on memory that nothing else can
// read, against plain memory and our own kernels.
#include <gtest/gtest.h>

#include "strait/train/generate.h"
#include "strait/train/solo_step.h"
#include "tests/tensor/devices.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::distance;
using test::small_run;
using test::TemporaryFolder;

constexpr double kTolerance = 1e-9;  // as in equality_test.cpp

struct Trained {
  train::Outcome outcome;
  test::MasterWeights units;
};

Trained trained(Run run, int64_t ranks, const std::string& run_dir, const std::string& device) {
  run.output.run_dir = run_dir;
  const std::atomic<int> no_signal{0};
  Trained result;
  Job job = make_job(run, ranks);
  if (device != "plain") job.device = tensor::make_test_device(device);
  train::train(job, {}, no_signal, result.outcome);
  if (result.outcome.checkpoint.empty()) return result;  // nothing was left to train
  result.units = test::master_weights(run_dir, run);
  return result;
}

void expect_equal(const Trained& got, const Trained& want, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.outcome.losses.size(), want.outcome.losses.size()) << what;
  for (size_t step = 0; step < want.outcome.losses.size(); ++step)
    EXPECT_NEAR(got.outcome.losses[step], want.outcome.losses[step],
                tolerance * want.outcome.losses[step])
        << what << " step " << step;
  const double validation = want.outcome.validation.back().loss;
  EXPECT_NEAR(got.outcome.validation.back().loss, validation, tolerance * validation) << what;
  for (const auto& [unit, values] : want.units)
    EXPECT_LT(distance(got.units.at(unit), values), tolerance) << what << " " << unit;
}

const std::vector<std::vector<std::string>>& variants() {
  static const std::vector<std::vector<std::string>> all = {
      {"train.clip_norm=0.3", "train.micro_batch_size=3"},
      {"train.recompute=block", "model.shape.dropout=0.2", "model.shape.tied_head=false"},
      {"optimizer.kind=sgd", "optimizer.learning_rate=0.05", "model.shape.bias=false"},
      {"model.family=llama", "model.shape.kv_heads=1", "model.shape.bias=false",
       "model.shape.tied_head=false", "train.recompute=every:2", "train.micro_batch_size=6"},
      {"data.document_separator=.\n", "model.shape.layers=1"},
  };
  return all;
}

class OnDevice : public ::testing::TestWithParam<std::tuple<size_t, std::string>> {};

TEST_P(OnDevice, EveryPlacementEqualsOneRankOnPlainMemory) {
  const TemporaryFolder folder;
  const auto run_of = [&](const std::string& placement) {
    std::vector<std::string> sets = variants()[std::get<0>(GetParam())];
    sets.push_back("placement.preset=" + placement);
    sets.push_back("train.steps=8");
    return small_run(folder.path(), sets);
  };
  const Trained serial = trained(run_of("ddp"), 1, folder.path() + "/serial", "plain");
  EXPECT_LT(serial.outcome.losses.back(), serial.outcome.losses.front());
  const std::vector<std::pair<std::string, int64_t>> worlds = {
      {"ddp", 1},   {"zero3", 1}, {"ddp", 2},  {"zero1", 2},
      {"zero2", 4}, {"zero3", 4}, {"hsdp", 4}, {"mics", 4}};
  for (const auto& [placement, ranks] : worlds) {
    const std::string what = placement + std::to_string(ranks);
    expect_equal(
        trained(run_of(placement), ranks, folder.path() + "/" + what, std::get<1>(GetParam())),
        serial, kTolerance, what);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, OnDevice,
                         ::testing::Combine(::testing::Range(size_t{0}, size_t{5}),
                                            ::testing::ValuesIn(tensor::test_devices())));

class DeviceRun : public ::testing::TestWithParam<std::string> {};

TEST_P(DeviceRun, ACheckpointGoesFromEitherKindOfMemoryToTheOther) {
  const TemporaryFolder folder;
  const auto run_of = [&](const std::string& steps, const std::string& resume) {
    return small_run(folder.path(), {"train.steps=" + steps, "optimizer.decay_steps=20",
                                     "placement.preset=zero3", "checkpoint.resume=" + resume});
  };
  const Trained whole = trained(run_of("20", "never"), 2, folder.path() + "/whole", "plain");
  for (const bool first_on_device : {false, true}) {
    const std::string half = folder.path() + (first_on_device ? "/device" : "/plain");
    const std::string first = first_on_device ? GetParam() : "plain";
    const std::string second = first_on_device ? "plain" : GetParam();
    trained(run_of("9", "never"), 2, half, first);
    const Trained resumed = trained(run_of("20", half), 2, half + "-resumed", second);
    for (const auto& [unit, values] : whole.units)
      EXPECT_LT(distance(resumed.units.at(unit), values), kTolerance) << unit;
  }
}

TEST_P(DeviceRun, TheParameterHashIsOfTheBitsInTheCheckpoint) {
  const TemporaryFolder folder;
  const strait::Run run = small_run(folder.path(), {"train.steps=3"});
  const Trained one = trained(run, 1, folder.path() + "/one", GetParam());
  const Trained two = trained(run, 1, folder.path() + "/two", GetParam());
  EXPECT_FALSE(one.outcome.parameter_hash.empty());
  EXPECT_EQ(one.outcome.parameter_hash, two.outcome.parameter_hash);
  // A run of no further step on plain memory hashes what it has read.
  const strait::Run again =
      small_run(folder.path(), {"train.steps=3", "checkpoint.resume=" + folder.path() + "/one"});
  EXPECT_EQ(trained(again, 1, folder.path() + "/again", "plain").outcome.parameter_hash,
            one.outcome.parameter_hash);
}

// fp32 state, bf16 compute and wire: both sides round at the same places up to a few operators, so
// that their losses differ by less than the roundings move a loss (2^-8 of it).
TEST_P(DeviceRun, Bfloat16TrainsAlongsideTheKernels) {
  const TemporaryFolder folder;
  for (const char* placement : {"ddp", "zero3"}) {
    const strait::Run run = small_run(
        folder.path(), {"train.precision=bf16", std::string("placement.preset=") + placement});
    const std::string path = folder.path() + "/" + placement;
    const Trained plain = trained(run, 2, path + "-plain", "plain");
    const Trained device = trained(run, 2, path + "-device", GetParam());
    for (size_t step = 0; step < plain.outcome.losses.size(); ++step)
      EXPECT_NEAR(device.outcome.losses[step], plain.outcome.losses[step],
                  0x1p-8 * plain.outcome.losses[step])
          << placement << " step " << step;
  }
}

TEST_P(DeviceRun, GenerationGivesTheLogitsOfPlainMemory) {
  const TemporaryFolder folder;
  for (const char* family : {"gpt2", "llama"}) {
    const strait::Run run =
        small_run(folder.path(), {"train.steps=5", std::string("model.family=") + family});
    const std::string path = folder.path() + "/" + family;
    trained(run, 1, path, "plain");
    const checkpoint::CheckpointReader reader(path);
    const ModelShape shape =
        model_shape(run.model, reader.manifest().model.at("vocabulary").as_integer());
    Cluster cluster;
    cluster.name = "one";
    cluster.levels = {{"world", 1, 1e9, 0, 1}};
    const auto device = tensor::make_test_device(GetParam());
    comm::ThreadWorldOptions options;
    options.device = device.get();
    const auto worlds = comm::make_thread_worlds(1, cluster, options);
    train::Generator plain(shape, {Dtype::kFloat64, 1}, worlds->world(0), reader);
    train::Generator on_device(shape, {Dtype::kFloat64, 1, device.get()}, worlds->world(0), reader);
    const std::vector<std::vector<int32_t>> pieces = {{1, 4, 2, 7, 3}, {3}, {9, 0}, {5}};
    for (const std::vector<int32_t>& piece : pieces) {
      const std::vector<double> want = plain.feed(piece), got = on_device.feed(piece);
      for (size_t v = 0; v < want.size(); ++v)
        ASSERT_NEAR(got[v], want[v], 1e-11 * (1 + std::abs(want[v]))) << family;
    }
    EXPECT_THROW(on_device.feed(std::vector<int32_t>{-1}), UserError);
  }
}

TEST_P(DeviceRun, AStepInTheSteadyStateTakesNoBuffersFromTheDevice) {
  strait::Run run;
  run.model = model_preset("nano-char");
  run.model.shape.context = 16;
  run.train.global_batch_size = 2;
  run.runtime.threads_per_rank = 1;
  const auto device = tensor::make_test_device(GetParam());
  train::SoloStep plain(run, 65), solo(run, 65, device.get());
  EXPECT_NEAR(solo.step().loss, plain.step().loss, 1e-5);
  const int64_t first = solo.pool().system_allocations();
  for (int step = 0; step < 3; ++step) solo.step();
  EXPECT_EQ(solo.pool().system_allocations(), first);
  plain.step();
  plain.step();
  plain.step();
  EXPECT_NEAR(solo.loss(), plain.loss(), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceRun, ::testing::ValuesIn(tensor::test_devices()));

}  // namespace
}  // namespace strait
