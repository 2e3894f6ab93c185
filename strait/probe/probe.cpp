#include "strait/probe/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <vector>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/process_memory.h"
#include "strait/config/cluster_file.h"
#include "strait/measure/collective_run.h"
#include "strait/measure/copy.h"
#include "strait/measure/gemm.h"
#include "strait/measure/rank_team.h"
#include "strait/measure/timing.h"
#include "strait/probe/attention_work.h"
#include "strait/probe/probe_work.h"
#include "strait/report/statistics.h"
#include "strait/threads/cores.h"

namespace strait::measure {
namespace {

/// Products of all ranks at once; floating-point operations per second of one rank.
double gemm_rate(RankTeam& team, const ProbeOptions& options, Dtype dtype) {
  const GemmShape shape{.m = options.gemm_size, .n = options.gemm_size, .k = options.gemm_size};
  std::vector<std::unique_ptr<Gemm>> gemms(team.ranks());
  std::vector<std::string> failures(team.ranks());
  team.run([&](int64_t rank) {
    gemms[rank] = std::make_unique<Gemm>(shape, dtype, options.products_of(dtype));
    gemms[rank]->run();
    failures[rank] = gemms[rank]->check();
  });
  for (const std::string& failure : failures) {
    if (!failure.empty()) throw InternalError("probe: " + failure);
  }
  const Contender products{"", "",
                           [&] { return team.run([&](int64_t rank) { gemms[rank]->run(); }); }, ""};
  const auto timings = time_interleaved({products}, {.warmups = 1, .runs = options.runs});
  return shape.flops() / report::statistics_of(timings[0].seconds).median;
}

template <class Work>
struct Timed {
  std::unique_ptr<Work> work;  // of rank 0
  double seconds = 0;
};

/// Median seconds of what each rank makes, runs and destroys on its own thread: all `makes` in
/// turns.
template <class Work>
std::vector<Timed<Work>> time_works(
    RankTeam& team, int64_t runs,
    const std::vector<std::function<std::unique_ptr<Work>()>>& makes) {
  std::vector<std::vector<std::unique_ptr<Work>>> works(makes.size());
  std::vector<Contender> contenders;
  for (size_t at = 0; at < makes.size(); ++at) {
    works[at].resize(team.ranks());
    team.run([&](int64_t rank) { (works[at][rank] = makes[at]())->run(); });
    contenders.push_back(
        {"", "",
         [&team, &mine = works[at]] { return team.run([&](int64_t rank) { mine[rank]->run(); }); },
         ""});
  }
  const auto timings = time_interleaved(contenders, {.warmups = 1, .runs = runs});
  std::vector<Timed<Work>> timed;
  for (size_t at = 0; at < makes.size(); ++at) {
    team.run([&](int64_t rank) {
      if (rank > 0) works[at][rank].reset();
    });
    timed.push_back({std::move(works[at][0]), report::statistics_of(timings[at].seconds).median});
  }
  return timed;
}

double attention_rate_of(RankTeam& team, const ProbeOptions& options, const ProbeResult& result,
                         Dtype dtype) {
  const auto timed = time_works<AttentionWork>(
      team, options.runs, {[&] {
        return std::make_unique<AttentionWork>(attention_of(options.run), dtype,
                                               result.threads_per_rank, options.products_of(dtype));
      }});
  if (const std::string failure = timed[0].work->check(); !failure.empty())
    throw InternalError("probe: " + failure);
  return timed[0].work->flops() / timed[0].seconds;
}

BlockRates block_rates_of(RankTeam& team, const ProbeOptions& options, const ProbeResult& result,
                          const BlockCase& block, Dtype dtype) {
  std::vector<std::function<std::unique_ptr<ModelWork>()>> makes;
  const auto add = [&](const BlockCase& one) {
    makes.emplace_back([&, one] {
      return std::make_unique<ModelWork>(one, dtype, result.threads_per_rank,
                                         options.products_of(dtype));
    });
  };
  add(block);
  if (const auto fewer = with_fewer_tokens(block)) add(*fewer);
  const auto timed = time_works<ModelWork>(team, options.runs, makes);
  const auto block_at = [&](size_t at) {
    return at < timed.size() ? TimedBlock{timed[at].work.get(), timed[at].seconds} : TimedBlock{};
  };
  return block_rates(block_at(0), block_at(1), result.other_rates(dtype));
}

double codec_rate_of(RankTeam& team, const ProbeOptions& options) {
  const auto timed = time_works<CodecWork>(
      team, options.runs, {[&] { return std::make_unique<CodecWork>(options.codec_elements); }});
  return timed[0].work->bytes() / timed[0].seconds;
}

double all_gather_seconds(RankTeam& team, int64_t bytes, int64_t runs, int64_t repeats) {
  CollectiveCase gather;
  gather.ranks = team.ranks();
  gather.bytes = gather.equal_parts(bytes);
  CollectiveRun run(team, gather);
  const std::string failure = run.check();
  if (!failure.empty()) throw InternalError("probe: " + failure);
  const Contender contender{"", "", [&] { return run.run(repeats); }, "", repeats};
  const auto timings = time_interleaved({contender}, {.warmups = 1, .runs = runs});
  return report::statistics_of(timings[0].seconds).median;
}

void measure_transport(RankTeam& team, const ProbeOptions& options, ProbeResult& result) {
  if (result.ranks == 1) {
    result.transport_bytes_per_second = result.copy_bytes_per_second();
    return;
  }
  const double ranks = static_cast<double>(result.ranks);
  const double received = static_cast<double>(options.transfer_bytes) * (ranks - 1.0) / ranks;
  result.transport_bytes_per_second =
      received / all_gather_seconds(team, options.transfer_bytes, options.runs, 1);
  result.transport_latency_seconds = all_gather_seconds(team, 8 * result.ranks, options.runs, 300);
}

}  // namespace

double ProbeResult::copy_bytes_per_second() const {
  return CopyRates{memcpy_bytes_per_second, streaming_bytes_per_second}.best();
}

double ProbeResult::attention_flops_per_second(Dtype dtype) const {
  return dtype == Dtype::kFloat64    ? fp64_attention_flops_per_second
         : dtype == Dtype::kBfloat16 ? bf16_attention_flops_per_second
                                     : fp32_attention_flops_per_second;
}

OtherRates ProbeResult::other_rates(Dtype dtype) const {
  return {copy_bytes_per_second(), attention_flops_per_second(dtype),
          dtype == Dtype::kBfloat16 ? bf16_flops_per_second.value_or(0) : fp32_flops_per_second};
}

void fill_block_rates(ProbeResult& result, const std::function<double(Dtype)>& attention_rate,
                      const std::function<BlockRates(Dtype)>& rates_of_blocks) {
  result.fp32_attention_flops_per_second = attention_rate(Dtype::kFloat32);
  result.fp64_attention_flops_per_second = attention_rate(Dtype::kFloat64);
  result.bf16_attention_flops_per_second = attention_rate(Dtype::kBfloat16);
  const BlockRates fp32 = rates_of_blocks(Dtype::kFloat32),
                   bf16 = rates_of_blocks(Dtype::kBfloat16);
  result.fp32_model_flops_per_second = fp32.flops_per_second;
  result.bf16_model_flops_per_second = bf16.flops_per_second;
  result.fp32_weights_per_second = fp32.weights_per_second;
  result.bf16_weights_per_second = bf16.weights_per_second;
  // Blocks are made of products: faster ones were timed while the machine had less else to do.
  const auto raise = [](double& peak, std::initializer_list<double> reached) {
    peak = std::max(peak, std::max(reached));
  };
  raise(result.fp32_flops_per_second,
        {result.fp32_attention_flops_per_second, result.fp32_model_flops_per_second});
  raise(result.fp64_flops_per_second, {result.fp64_attention_flops_per_second});
  if (result.bf16_flops_per_second)
    raise(*result.bf16_flops_per_second,
          {result.bf16_attention_flops_per_second, result.bf16_model_flops_per_second});
}

ProbeResult probe(const ProbeOptions& options) {
  ProbeResult result;
  result.cores = available_cores();
  result.ranks = options.ranks == 0 ? result.cores : options.ranks;
  if (result.ranks < 1) {
    throw UserError(
        fmt::format("probe: ranks = {} is negative; nearest valid choice: 1", options.ranks));
  }
  result.threads_per_rank = options.threads_per_rank > 0
                                ? options.threads_per_rank
                                : std::max<int64_t>(1, result.cores / result.ranks);
  result.ranks_per_machine = result.ranks;
  result.cores_per_machine = result.cores;
  const BlockCase block = block_of(options.run, result.ranks, options.gemm_size / 2);
  result.block = description(block);
  RankTeam team(result.ranks, result.threads_per_rank);
  result.fp32_flops_per_second = gemm_rate(team, options, Dtype::kFloat32);
  result.fp64_flops_per_second = gemm_rate(team, options, Dtype::kFloat64);
  result.bf16_flops_per_second = gemm_rate(team, options, Dtype::kBfloat16);
  const CopyRates rates = measure_copy(team, options.copy_bytes, options.runs);
  const double ranks = static_cast<double>(result.ranks);
  result.memcpy_bytes_per_second = rates.memcpy_bytes_per_second / ranks;
  result.streaming_bytes_per_second = rates.streaming_bytes_per_second / ranks;
  result.memory_bytes = usable_memory_bytes() / result.ranks;
  fill_block_rates(
      result, [&](Dtype dtype) { return attention_rate_of(team, options, result, dtype); },
      [&](Dtype dtype) { return block_rates_of(team, options, result, block, dtype); });
  result.codec_bytes_per_second = codec_rate_of(team, options);
  measure_transport(team, options, result);
  return result;
}

Cluster probe_cluster(const ProbeResult& result) {
  Cluster cluster;
  cluster.name = "probe";
  cluster.levels = {{.name = "world",
                     .size = result.ranks,
                     .bytes_per_second = result.transport_bytes_per_second,
                     .latency_seconds = result.transport_latency_seconds,
                     .links = 1}};
  if (!result.levels.empty()) cluster.levels = result.levels;
  cluster.ranks = result.ranks;
  cluster.flops_per_second_fp32 = result.fp32_flops_per_second;
  cluster.flops_per_second_fp64 = result.fp64_flops_per_second;
  cluster.flops_per_second_bf16 = result.bf16_flops_per_second.value_or(0.0);
  cluster.model_flops_per_second_fp32 = result.fp32_model_flops_per_second;
  cluster.model_flops_per_second_bf16 = result.bf16_model_flops_per_second;
  cluster.weights_per_second_fp32 = result.fp32_weights_per_second;
  cluster.weights_per_second_bf16 = result.bf16_weights_per_second;
  cluster.attention_flops_per_second_fp32 = result.fp32_attention_flops_per_second;
  cluster.attention_flops_per_second_fp64 = result.fp64_attention_flops_per_second;
  cluster.attention_flops_per_second_bf16 = result.bf16_attention_flops_per_second;
  cluster.codec_bytes_per_second = result.codec_bytes_per_second;
  cluster.memory_bytes_per_second = result.copy_bytes_per_second();
  cluster.memory_bytes = result.memory_bytes;
  cluster.cores_per_rank = result.threads_per_rank;
  if (result.ranks_per_machine * result.threads_per_rank > result.cores_per_machine) {
    cluster.ranks_per_machine = result.ranks_per_machine;
    cluster.cores_per_machine = result.cores_per_machine;
  }
  cluster.shares_cores = true;  // thread ranks move bytes with the cores that compute
  return cluster;
}

std::string render_cluster_file(const ProbeResult& result) {
  return fmt::format(
             "# Measured by strait probe with {} {} of {} threads, all at once, on {} "
             "cores{}.\n"
             "# Rates are of one rank. model_flops: forward and backward of a whole block{} "
             "without attention,\n# beside what its weights take, however few the tokens; "
             "attention_flops: those of attention;\n# flops: products alone.\n"
             "# memory_bytes_per_second: bytes read plus written, the better of memcpy ({:.3g}) "
             "and "
             "streaming stores\n"
             "# ({:.3g}). Levels: all-gathers in all of a level's groups at once; processor_share: "
             "what computing loses\n# to them meanwhile.\n",
             result.ranks, result.processes ? "processes" : "thread ranks", result.threads_per_rank,
             result.cores, result.processes ? " of each host" : "",
             result.block.empty() ? "" : " (" + result.block + ")", result.memcpy_bytes_per_second,
             result.streaming_bytes_per_second) +
         print_cluster_file(probe_cluster(result));
}

}  // namespace strait::measure
