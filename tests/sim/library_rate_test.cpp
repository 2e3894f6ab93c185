// What LibTorch runs is priced at its own rates: steps of modules whose times follow from their
// manifest, in the cost model and the simulator alike.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "strait/base/file.h"
#include "strait/base/json.h"
#include "strait/config/parse.h"
#include "strait/cost/cost.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/design.h"

namespace strait {
namespace {

constexpr double kContext = 4, kVocabulary = 50;

/// A first block and a last one, whose loss is its own; no file is more than its name.
class ModuleFolder {
 public:
  ModuleFolder() {
    for (const char* name : {"a.pt", "b.pt", "w.safetensors"})
      write_file_atomically(path_ + "/" + name, "0123456789");
    Json blocks = Json::array();
    blocks.push_back(block("first", "a.pt", {2, 3}, 1e9, {7, 12, 30}));
    blocks.push_back(block("last", "b.pt", {4}, 4e9, {5, 8, 20}));
    write_file_atomically(path_ + "/modules.json",
                          Json::object({{"format", "strait-modules"},
                                        {"version", 1},
                                        {"vocabulary", static_cast<int64_t>(kVocabulary)},
                                        {"context", static_cast<int64_t>(kContext)},
                                        {"input", "tokens"},
                                        {"loss", "own"},
                                        {"weights", "w.safetensors"},
                                        {"blocks", blocks}})
                              .dump());
  }
  ~ModuleFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  static Json block(const char* name, const char* file, std::vector<int64_t> output, double flops,
                    std::vector<int64_t> work) {
    Json parameters = Json::array();
    parameters.push_back(Json::object({{"name", "weight"}, {"dims", std::vector<int64_t>{3, 5}}}));
    return Json::object(
        {{"name", name},
         {"file", file},
         {"bytes", 10},
         {"output", output},
         {"forward_flops", flops},
         {"work",
          Json::object({{"calls", work[0]}, {"activations", work[1]}, {"passed", work[2]}})},
         {"parameters", parameters}});
  }

  std::string path_ = [] {
    std::string path = (std::filesystem::temp_directory_path() / "strait-modules-XXXXXX").string();
    return std::string(mkdtemp(path.data()));
  }();
};

/// Steps of two micro-batches of three sequences.
strategy::Design design_of(const ModuleFolder& folder, const std::string& precision) {
  return strategy::make_design(
      parse_run("", "test.toml",
                {"model.family=modules", "model.path=" + folder.path(), "train.global_batch_size=6",
                 "train.micro_batch_size=3", "train.precision=" + precision}),
      1, static_cast<int64_t>(kVocabulary));
}

void expect_seconds(const strategy::Design& design, double seconds) {
  EXPECT_NEAR(cost::price(design.steady(), design.cluster).compute_seconds, seconds,
              1e-9 * seconds);
  for (const program::Program& program : design.steady())
    EXPECT_NEAR(sim::simulate(program, design.cluster).seconds, seconds, 1e-9 * seconds);
}

TEST(LibraryRate, AStepOfModulesTakesTheirWorkAtItsRates) {
  const ModuleFolder folder;
  for (const std::string precision : {"fp32", "fp64", "bf16"}) {
    SCOPED_TRACE(precision);
    strategy::Design design = design_of(folder, precision);
    Cluster& cluster = design.cluster;
    cluster.memory_bytes_per_second = cluster.codec_bytes_per_second = 1e30;
    const auto none = [&] {
      cluster.library_flops_per_second = cluster.library_activations_per_second =
          cluster.library_calls_per_second = 1e30;
    };
    none();
    cluster.library_flops_per_second = 2e9;
    // Two forwards and a backward of the first; of the last one forward less.
    expect_seconds(design, 6 * (4 * 1e9 + 3 * 4e9) / 2e9);
    none();
    cluster.library_activations_per_second = 10;
    // Once each way.
    expect_seconds(design, 6 * (3 * 12.0 + 2 * 8) / 10);
    none();
    cluster.library_calls_per_second = 10;
    // Whatever the batch: of each of two micro-batches. Parameters have 4 calls beside.
    expect_seconds(design, 2 * (7 + (3 * 7 + 4) + (3 * 5 + 4)) / 10.0);
  }
}

TEST(LibraryRate, ModulesPassNumbersAtTheRateOfCopies) {
  const ModuleFolder folder;
  strategy::Design design = design_of(folder, "fp32");
  Cluster& cluster = design.cluster;
  cluster.library_flops_per_second = cluster.library_activations_per_second =
      cluster.library_calls_per_second = 1e30;
  cluster.memory_bytes_per_second = 10;
  // Beside it only what the update of 30 weights passes.
  const double passed = 6 * 4 * (3.5 * 30 + 2.5 * 20);
  const double seconds = cost::price(design.steady(), cluster).compute_seconds;
  EXPECT_GT(seconds, passed / 10);
  EXPECT_LT(seconds, passed / 10 + 30 * 4 * 12 / 10.0);
}

TEST(LibraryRate, WithoutOneProductsAreAtTheRateOfBlocks) {
  const ModuleFolder folder;
  strategy::Design design = design_of(folder, "fp32");
  Cluster& cluster = design.cluster;
  cluster.memory_bytes_per_second = cluster.codec_bytes_per_second = 1e30;
  cluster.library_flops_per_second = cluster.library_activations_per_second =
      cluster.library_calls_per_second = 0;
  cluster.model_flops_per_second_fp32 = 3e9;
  expect_seconds(design, 6 * (4 * 1e9 + 3 * 4e9) / 3e9);
}

}  // namespace
}  // namespace strait
