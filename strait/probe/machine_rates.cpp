#include "strait/probe/machine_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/json.h"
#include "strait/base/process_identity.h"
#include "strait/base/random.h"
#include "strait/base/version.h"
#include "strait/kernel/product_choice.h"
#include "strait/measure/copy.h"
#include "strait/measure/gemm.h"
#include "strait/measure/rank_team.h"
#include "strait/probe/attention_work.h"
#include "strait/probe/library_run.h"
#include "strait/probe/probe_work.h"

namespace strait::measure {
namespace {

constexpr int64_t kGemmSize = 640;  // 3.3 MB of operands in fp32: out of L1, near the peak
constexpr int64_t kBlockWidth = 256, kBlockSequences = 3;
constexpr int64_t kCopyBytes = 16 << 20;  // a thread's, beyond its part of the caches
constexpr double kProductSeconds = 0.03;
constexpr double kCopySeconds = 0.01;
constexpr double kBlockSeconds = 0.02;  // of many tokens, and again of few
constexpr double kAttentionSeconds = 0.02;
constexpr double kLibrarySeconds = 0.01;  // of each of its parts

/// Processor time of this thread: other programs on the machine do not lengthen it.
double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// What each thread makes and then runs beside the others, at least twice and as often as fits into
/// `budget_seconds`: the least seconds of the slowest thread.
template <class Work, class Make>
double best_of(RankTeam& team, double budget_seconds, const Make& make,
               std::vector<std::unique_ptr<Work>>& works) {
  std::vector<double> seconds(static_cast<size_t>(team.ranks()));
  works.resize(seconds.size());
  team.run([&](int64_t rank) { (works[rank] = make())->run(); });
  const auto run = [&] {
    team.run([&](int64_t rank) {
      const double began = thread_seconds();
      works[rank]->run();
      seconds[rank] = thread_seconds() - began;
    });
    return *std::max_element(seconds.begin(), seconds.end());
  };
  const double end = now_seconds() + budget_seconds;
  double best = run();
  do best = std::min(best, run());
  while (now_seconds() < end);
  return best;
}

double product_rate(RankTeam& team, Dtype dtype, kernel::NarrowProducts products) {
  const GemmShape shape{.m = kGemmSize, .n = kGemmSize, .k = kGemmSize};
  std::vector<std::unique_ptr<Gemm>> works;
  const double seconds = best_of(
      team, kProductSeconds, [&] { return std::make_unique<Gemm>(shape, dtype, products); }, works);
  const std::string failure = works[0]->check();
  if (!failure.empty()) throw InternalError("rates of this machine: " + failure);
  return shape.flops() / seconds;
}

/// A copy of one thread's own memory.
class CopyWork {
 public:
  explicit CopyWork(bool streams) : streams_(streams), from_(kLines, Line{{1}}), to_(kLines) {}
  void run() {
    if (streams_)
      streaming_copy(from_.data(), to_.data(), kCopyBytes);
    else
      std::memcpy(to_.data(), from_.data(), kCopyBytes);
  }
  bool equal() const { return std::memcmp(from_.data(), to_.data(), kCopyBytes) == 0; }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  static constexpr size_t kLines = kCopyBytes / sizeof(Line);
  bool streams_;
  std::vector<Line> from_, to_;
};

double copy_rate(RankTeam& team) {
  double seconds = std::numeric_limits<double>::infinity();
  for (const bool streams : {false, true}) {
    std::vector<std::unique_ptr<CopyWork>> works;
    seconds = std::min(seconds, best_of(
                                    team, kCopySeconds,
                                    [&] { return std::make_unique<CopyWork>(streams); }, works));
    ensure(works[0]->equal(), "rates of this machine: a copy differs from its source");
  }
  return 2.0 * static_cast<double>(kCopyBytes) / seconds;
}

double attention_rate(RankTeam& team, Dtype dtype, kernel::NarrowProducts products) {
  std::vector<std::unique_ptr<AttentionWork>> works;
  const double seconds = best_of(
      team, kAttentionSeconds,
      [&] { return std::make_unique<AttentionWork>(AttentionCase(), dtype, 1, products); }, works);
  const std::string failure = works[0]->check();
  if (!failure.empty()) throw InternalError("rates of this machine: " + failure);
  return works[0]->flops() / seconds;
}

double library_rate(RankTeam& team, LibraryPart part, Dtype dtype) {
  std::vector<std::unique_ptr<LibraryRun>> works;
  const double seconds = best_of(
      team, kLibrarySeconds, [&] { return make_library_run(part, dtype); }, works);
  return works[0]->amount() / seconds;
}

/// Of blocks with many tokens and with few.
BlockRates rates_of_blocks(RankTeam& team, Dtype dtype, kernel::NarrowProducts products,
                           const OtherRates& others) {
  if (dtype == Dtype::kFloat64) return {};
  BlockCase many = block_of_width(kBlockWidth);
  many.run.train.global_batch_size = kBlockSequences;
  const BlockCase cases[] = {many, with_fewer_tokens(many).value()};
  std::vector<std::unique_ptr<ModelWork>> works[2];
  TimedBlock timed[2];
  for (int at = 0; at < 2; ++at) {
    const double seconds = best_of(
        team, kBlockSeconds,
        [&] { return std::make_unique<ModelWork>(cases[at], dtype, 1, products); }, works[at]);
    timed[at] = {works[at][0].get(), seconds};
  }
  const BlockRates rates = block_rates(timed[0], timed[1], others);
  team.run([&](int64_t rank) {  // by the thread that made it
    for (auto& of_case : works) of_case[rank].reset();
  });
  return rates;
}

struct Field {
  const char* name;
  double MeasuredRates::*rate;
};
constexpr Field kFields[] = {
    {"fp32_flops_per_second", &MeasuredRates::flops_per_second_fp32},
    {"fp64_flops_per_second", &MeasuredRates::flops_per_second_fp64},
    {"bf16_flops_per_second", &MeasuredRates::flops_per_second_bf16},
    {"fp32_model_flops_per_second", &MeasuredRates::model_flops_per_second_fp32},
    {"bf16_model_flops_per_second", &MeasuredRates::model_flops_per_second_bf16},
    {"fp32_attention_flops_per_second", &MeasuredRates::attention_flops_per_second_fp32},
    {"fp64_attention_flops_per_second", &MeasuredRates::attention_flops_per_second_fp64},
    {"bf16_attention_flops_per_second", &MeasuredRates::attention_flops_per_second_bf16},
    {"fp32_weights_per_second", &MeasuredRates::weights_per_second_fp32},
    {"bf16_weights_per_second", &MeasuredRates::weights_per_second_bf16},
    {"library_flops_per_second", &MeasuredRates::library_flops_per_second},
    {"library_activations_per_second", &MeasuredRates::library_activations_per_second},
    {"library_calls_per_second", &MeasuredRates::library_calls_per_second},
    {"memory_bytes_per_second", &MeasuredRates::memory_bytes_per_second}};

std::optional<MeasuredRates> read_rates(const std::string& file) {
  try {
    return rates_from_json(Json::parse(read_file(file), file));
  } catch (const Error&) {
    return std::nullopt;
  }
}

void write_rates(const MeasuredRates& rates, const std::string& folder, const std::string& file) {
  try {
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    write_file_atomically(file, rates_json(rates).dump(1) + "\n");
  } catch (const InputOutputError&) {  // measured again the next time
  }
}

/// The lines of /proc/cpuinfo that tell processors apart.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string text;
  for (std::string line; std::getline(file, line) && !line.empty();)
    for (const char* key : {"model name", "stepping", "flags", "CPU part", "Features"})
      if (line.starts_with(key)) text += line + "\n";
  return text;
}

}  // namespace

MeasuredRates scaled(MeasuredRates rates, double share) {
  for (const Field& field : kFields) rates.*field.rate *= share;
  return rates;
}

Json rates_json(const MeasuredRates& rates) {
  Json json = Json::object();
  for (const Field& field : kFields) json[field.name] = rates.*field.rate;
  return json;
}

MeasuredRates rates_from_json(const Json& json) {
  MeasuredRates rates;
  for (const Field& field : kFields) rates.*field.rate = json.at(field.name).as_number();
  return rates;
}

MeasuredRates measure_rates(Dtype dtype, int64_t cores, kernel::NarrowProducts products,
                            bool library) {
  RankTeam team(cores, 1);
  MeasuredRates rates;
  rates.memory_bytes_per_second = copy_rate(team);
  if (library) {
    rates.library_flops_per_second = library_rate(team, LibraryPart::kConvolutions, dtype);
    rates.library_activations_per_second = library_rate(team, LibraryPart::kActivations, dtype);
    rates.library_calls_per_second = library_rate(team, LibraryPart::kCalls, dtype);
  }
  const double attention = attention_rate(team, dtype, products);
  const double rate = product_rate(team, dtype, products);
  const auto [blocks, weights] =
      rates_of_blocks(team, dtype, products, {rates.memory_bytes_per_second, attention, rate});
  const double peak = std::max({rate, blocks, attention});  // never passed
  if (dtype == Dtype::kFloat64) {
    rates.flops_per_second_fp64 = peak;
    rates.attention_flops_per_second_fp64 = attention;
  } else if (dtype == Dtype::kBfloat16) {
    rates.flops_per_second_bf16 = peak;
    rates.model_flops_per_second_bf16 = blocks;
    rates.weights_per_second_bf16 = weights;
    rates.attention_flops_per_second_bf16 = attention;
  } else {
    rates.flops_per_second_fp32 = peak;
    rates.model_flops_per_second_fp32 = blocks;
    rates.weights_per_second_fp32 = weights;
    rates.attention_flops_per_second_fp32 = attention;
  }
  return rates;
}

std::string rates_file(const std::string& cache_folder, Dtype dtype, int64_t cores,
                       kernel::NarrowProducts products) {
  const std::string machine = this_process().host + "\n" + processor() + commit();
  return fmt::format("{}/rates-{}-{}-{}-{:016x}.json", cache_folder, dtype_name(dtype),
                     kernel::product_name(products), cores, hash_name(machine));
}

MeasuredRates remembered_rates(const std::string& cache_folder, Dtype dtype, int64_t cores,
                               kernel::NarrowProducts products, bool library) {
  if (cache_folder.empty()) return measure_rates(dtype, cores, products, library);
  const std::string file = rates_file(cache_folder, dtype, cores, products);
  const std::optional<MeasuredRates> known = read_rates(file);
  if (known && (!library || known->library_calls_per_second > 0)) return *known;
  const MeasuredRates rates = measure_rates(dtype, cores, products, library);
  write_rates(rates, cache_folder, file);
  return rates;
}

}  // namespace strait::measure
