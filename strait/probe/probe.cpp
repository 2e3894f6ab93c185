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
    gemms[rank] = std::make_unique<Gemm>(shape, dtype, options.products);
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

/// Median seconds of what each rank makes, runs and destroys on its own thread.
template <class Work, class Make>
double seconds_of(RankTeam& team, int64_t runs, const Make& make, std::unique_ptr<Work>* first) {
  std::vector<std::unique_ptr<Work>> works(team.ranks());
  team.run([&](int64_t rank) { (works[rank] = make())->run(); });
  const Contender contender{
      "", "", [&] { return team.run([&](int64_t rank) { works[rank]->run(); }); }, ""};
  const auto timings = time_interleaved({contender}, {.warmups = 1, .runs = runs});
  team.run([&](int64_t rank) {
    if (rank > 0) works[rank].reset();
  });
  *first = std::move(works[0]);
  return report::statistics_of(timings[0].seconds).median;
}

double attention_rate_of(RankTeam& team, const ProbeOptions& options, const ProbeResult& result,
                         Dtype dtype) {
  std::unique_ptr<AttentionWork> work;
  const double seconds = seconds_of(
      team, options.runs,
      [&] {
        return std::make_unique<AttentionWork>(attention_of(options.run), dtype,
                                               result.threads_per_rank, options.products);
      },
      &work);
  if (const std::string failure = work->check(); !failure.empty())
    throw InternalError("probe: " + failure);
  return work->flops() / seconds;
}

double model_rate_of(RankTeam& team, const ProbeOptions& options, const ProbeResult& result,
                     const BlockCase& block, Dtype dtype) {
  std::unique_ptr<ModelWork> work;
  const double seconds = seconds_of(
      team, options.runs,
      [&] {
        return std::make_unique<ModelWork>(block, dtype, result.threads_per_rank, options.products);
      },
      &work);
  return model_rate(*work, seconds,
                    {result.copy_bytes_per_second(), result.attention_flops_per_second(dtype)});
}

double codec_rate_of(RankTeam& team, const ProbeOptions& options) {
  std::unique_ptr<CodecWork> work;
  const double seconds = seconds_of(
      team, options.runs, [&] { return std::make_unique<CodecWork>(options.codec_elements); },
      &work);
  return work->bytes() / seconds;
}

double all_gather_seconds(RankTeam& team, int64_t bytes, int64_t runs, int64_t repeats) {
  CollectiveCase gather;
  gather.ranks = team.ranks();
  gather.bytes = bytes;
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

void fill_block_rates(ProbeResult& result, const std::function<double(Dtype)>& attention_rate,
                      const std::function<double(Dtype)>& block_rate) {
  result.fp32_attention_flops_per_second = attention_rate(Dtype::kFloat32);
  result.fp64_attention_flops_per_second = attention_rate(Dtype::kFloat64);
  result.bf16_attention_flops_per_second = attention_rate(Dtype::kBfloat16);
  result.fp32_model_flops_per_second = block_rate(Dtype::kFloat32);
  result.bf16_model_flops_per_second = block_rate(Dtype::kBfloat16);
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
      [&](Dtype dtype) { return model_rate_of(team, options, result, block, dtype); });
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
             "without attention;\n# attention_flops: those of attention; flops: products alone.\n"
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
