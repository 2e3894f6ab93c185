#ifdef STRAIT_MPI

#include "strait/probe/probe_mpi.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/process_memory.h"
#include "strait/comm/mpi/machine_cores.h"
#include "strait/measure/copy.h"
#include "strait/measure/gemm.h"
#include "strait/measure/rank_team.h"
#include "strait/probe/attention_work.h"
#include "strait/probe/probe_work.h"
#include "strait/report/statistics.h"
#include "strait/threads/cores.h"
#include "strait/topology/binding.h"

namespace strait::measure {
namespace {

constexpr double kMostShare = 0.9;    // of a processor that transfers can take
constexpr double kLongEnough = 2.0;   // seconds that a timed transfer lasts at least: lost packets
                                      // of a narrow link cost a fifth of a second each
constexpr int64_t kLongRuns = 3;      // of a transfer that lasts so long
constexpr double kWorkSeconds = 0.1;  // of timed work: ranks that share processors take turns
constexpr int64_t kFirstTransfer = 1 << 20;  // bytes
constexpr int64_t kLatencyRepeats = 50;
constexpr double kWorthTelling = 1.25;
constexpr double kBesideSeconds = 0.4;  // of products that are timed beside a level's transfers

/// Which cores the ranks of this host keep to, in rank order.
std::vector<std::vector<int>> cores_of_host(const comm::MpiSession& session,
                                            const comm::MachineCores& machine,
                                            const Binding& binding) {
  const std::vector<std::string>& hosts = session.host_names();
  std::vector<std::vector<int>> cores;
  for (const auto& [rank, usable] : machine.usable)
    if (hosts[static_cast<size_t>(rank)] == hosts[static_cast<size_t>(session.rank())])
      cores.push_back(binding.cpus.empty() ? usable : binding.cpus.at(rank));
  return cores;
}

/// What ranks of a host share; nothing where hosts differ. Collective.
std::vector<RankLevel> levels_inside(comm::MpiSession& session, const std::optional<CoreTree>& host,
                                     const std::vector<std::vector<int>>& cores) {
  std::vector<RankLevel> levels = host ? rank_levels(*host, cores) : std::vector<RankLevel>();
  if (!levels.empty()) levels.pop_back();  // of the whole host
  std::string own;
  for (const RankLevel& level : levels) own += fmt::format("{} {} ", level.shared, level.size);
  for (const std::string& other : session.exchange(own))
    if (other != own) levels.clear();
  return levels;
}

/// The levels of the session's hosts, with rates that stand in until they are measured.
Cluster levels_of(const comm::MpiSession& session, const std::vector<RankLevel>& inside) {
  const std::vector<std::string>& hosts = session.host_names();
  const int64_t here = session.ranks_on_host(), ranks = session.size();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t first = rank / here * here;
    if (ranks % here == 0 && hosts[rank] == hosts[first] &&
        (first == 0 || hosts[first] != hosts[first - 1]))
      continue;
    throw UserError(fmt::format(
        "probe: rank {} on host {} breaks the order: every host must have equally many ranks, one "
        "after another; start {} on each, or write the levels by hand",
        rank, hosts[rank], here));
  }
  Cluster cluster;
  cluster.name = "probe";
  cluster.ranks = ranks;
  int64_t rest = ranks;
  const auto add = [&](const std::string& name, int64_t size, double rate) {
    cluster.levels.push_back({name, size, rate, 2e-6, 1});
    rest /= size;
  };
  for (const RankLevel& level : inside) add(level.shared, level.size, 1e10);
  const int64_t groups = here / (ranks / rest);  // of a host
  if (groups > 1 && here < ranks) add("node", groups, 5e9);
  add("world", rest, 1e9);
  return cluster;
}

/// Times what all ranks do together.
class Together {
 public:
  Together(comm::MpiSession& session, comm::World& world) : session_(session), world_(world) {
    std::vector<int64_t> members(static_cast<size_t>(world.size()));
    std::iota(members.begin(), members.end(), 0);
    all_ = &world.communicator(members, 0);
  }
  /// Median over `runs` of the slowest rank's seconds, after one run to warm up.
  double seconds(int64_t runs, const std::function<void()>& body) {
    body();
    return slowest_medians(runs, {body})[0];
  }
  /// The same of short works, in turns, each done so often that a run lasts kWorkSeconds; seconds
  /// of one.
  std::vector<double> seconds_of_short(int64_t runs,
                                       const std::vector<std::function<void()>>& works) {
    std::vector<std::function<void()>> bodies;
    std::vector<double> times;
    for (const auto& work : works) {
      times.push_back(std::max(1.0, std::round(kWorkSeconds / seconds(1, work))));
      bodies.emplace_back([&work, count = std::llround(times.back())] {
        for (int64_t at = 0; at < count; ++at) work();
      });
    }
    std::vector<double> medians = slowest_medians(runs, bodies);
    for (size_t at = 0; at < works.size(); ++at) medians[at] /= times[at];
    return medians;
  }
  /// The mean of a value over the ranks.
  double mean(double value) {
    double sum = 0;
    const std::vector<Json> values = shared(Json(value));
    for (const Json& rank : values) sum += rank.as_number();
    return sum / static_cast<double>(values.size());
  }
  /// The least of a value over the ranks.
  double least(double value) {
    for (const Json& rank : shared(Json(value))) value = std::min(value, rank.as_number());
    return value;
  }

 private:
  /// Of each body, run in turns.
  std::vector<double> slowest_medians(int64_t runs,
                                      const std::vector<std::function<void()>>& bodies) {
    std::vector<double> mine;  // run by run
    for (int64_t run = 0; run < runs; ++run)
      for (const auto& body : bodies) {
        barrier();
        const double began = now_seconds();
        body();
        mine.push_back(now_seconds() - began);
      }
    std::vector<std::vector<double>> slowest(bodies.size(),
                                             std::vector<double>(static_cast<size_t>(runs), 0.0));
    for (const Json& rank : shared(Json(mine)))
      for (size_t at = 0; at < mine.size(); ++at) {
        double& most = slowest[at % bodies.size()][at / bodies.size()];
        most = std::max(most, rank.as_array()[at].as_number());
      }
    std::vector<double> medians;
    for (const std::vector<double>& of_body : slowest)
      medians.push_back(report::statistics_of(of_body).median);
    return medians;
  }
  std::vector<Json> shared(const Json& value) {
    std::vector<Json> values;
    for (const std::string& text : session_.exchange(value.dump()))
      values.push_back(Json::parse(text, "rank"));
    return values;
  }
  void barrier() {
    comm::Call call;
    call.operation = comm::Operation::kBarrier;
    call.label = "probe barrier";
    all_->run(call);
  }
  comm::MpiSession& session_;
  comm::World& world_;
  comm::Communicator* all_;
};

/// All-gathers of the group of one level that this rank belongs to.
class LevelGather {
 public:
  LevelGather(comm::MpiSession& session, comm::World& world, const Cluster& cluster, size_t level,
              int64_t most_bytes)
      : session_(session), size_(cluster.levels[level].size) {
    const int64_t inside = level == 0 ? 1 : cluster.group_size(static_cast<int64_t>(level) - 1);
    const int64_t first =
        world.rank() / (inside * size_) * (inside * size_) + world.rank() % inside;
    std::vector<int64_t> members;
    for (int64_t at = 0; at < size_; ++at) members.push_back(first + at * inside);
    communicator_ = &world.communicator(members, 1 + static_cast<int64_t>(level));
    buffer_ = static_cast<char*>(session.window().allocate(most_bytes));
    std::memset(buffer_, 0, static_cast<size_t>(most_bytes));
  }
  ~LevelGather() { session_.window().release(buffer_); }
  LevelGather(const LevelGather&) = delete;
  LevelGather& operator=(const LevelGather&) = delete;

  void run(int64_t bytes) { start(bytes).wait(); }
  comm::Ticket start(int64_t bytes) {
    const int64_t part = bytes / size_, own = communicator_->position() * part;
    comm::Call call;
    call.operation = comm::Operation::kAllGather;
    call.dtype = Dtype::kByte;
    call.counts.assign(static_cast<size_t>(size_), part);
    call.source = buffer_ + own;
    call.destination = buffer_;
    call.label = "probe all-gather";
    std::memset(buffer_ + own, static_cast<int>(communicator_->position() + 1),
                static_cast<size_t>(part));
    return communicator_->start(call);
  }
  /// Whether the last one of `bytes` left each member's part.
  bool is_right(int64_t bytes) const {
    const int64_t part = bytes / size_;
    for (int64_t at = 0; at < size_; ++at)
      for (const int64_t byte : {at * part, (at + 1) * part - 1})
        if (buffer_[byte] != static_cast<char>(at + 1)) return false;
    return true;
  }

 private:
  comm::MpiSession& session_;
  int64_t size_;
  comm::Communicator* communicator_ = nullptr;
  char* buffer_ = nullptr;
};

/// Timed runs of a transfer that takes so many seconds.
int64_t runs_of(const ProbeOptions& options, double seconds) {
  return seconds < kLongEnough ? options.runs : kLongRuns;
}

/// What products lose while all-gathers of a level, each of so many bytes and seconds, go on behind
/// them.
double processor_share(Together& together, const ProbeOptions& options, LevelGather& gather,
                       std::pair<int64_t, double> each) {
  const GemmShape shape{.m = options.gemm_size, .n = options.gemm_size, .k = options.gemm_size};
  Gemm gemm(shape, Dtype::kFloat32);
  const double one = together.seconds(options.runs, [&] { gemm.run(); });
  const int64_t products = std::max<int64_t>(1, std::llround(kBesideSeconds / one));
  const auto multiply = [&] {
    const double began = now_seconds();
    for (int64_t k = 0; k < products; ++k) gemm.run();
    return now_seconds() - began;
  };
  const double alone = together.seconds(options.runs, [&] { multiply(); });
  const int64_t gathers = std::max<int64_t>(1, std::llround(1.5 * alone / each.second));
  std::vector<double> shares;
  together.seconds(runs_of(options, each.second), [&] {
    std::vector<comm::Ticket> tickets;
    const double began = now_seconds();
    for (int64_t k = 0; k < gathers; ++k) tickets.push_back(gather.start(each.first));
    const double beside = multiply();
    for (comm::Ticket& ticket : tickets) ticket.wait();
    const double busy = std::min(beside, tickets.back().interval().second - began);
    shares.push_back((beside - alone) / busy);
  });
  return std::clamp(together.mean(report::statistics_of(shares).median), 0.0, kMostShare);
}

void measure_level(comm::MpiSession& session, comm::World& world, Together& together,
                   const ProbeOptions& options, std::pair<Cluster*, size_t> which) {
  auto& [cluster, index] = which;
  Level& level = cluster->levels[index];
  const int64_t inside = index == 0 ? 1 : cluster->group_size(static_cast<int64_t>(index) - 1);
  LevelGather gather(session, world, *cluster, index, options.transfer_bytes);
  const int64_t small = 8 * level.size;
  level.latency_seconds = together.seconds(options.runs, [&] {
    for (int64_t k = 0; k < kLatencyRepeats; ++k) gather.run(small);
  }) / kLatencyRepeats;
  if (!gather.is_right(small))
    throw InternalError("probe: an all-gather over level " + level.name + " is wrong");
  int64_t bytes = std::min(kFirstTransfer, options.transfer_bytes);
  double seconds = 0;
  const double share = static_cast<double>(level.size - 1) / static_cast<double>(level.size);
  // The next transfers know already how long one keeps a link busy.
  const auto learn = [&] {
    level.bytes_per_second = static_cast<double>(inside * bytes) * share / seconds;
  };
  for (;; bytes = std::min(4 * bytes, options.transfer_bytes)) {
    seconds = together.seconds(bytes < options.transfer_bytes ? 1 : options.runs,
                               [&] { gather.run(bytes); });
    learn();
    if (seconds >= kLongEnough || bytes == options.transfer_bytes) break;
  }
  seconds = together.seconds(runs_of(options, seconds), [&] { gather.run(bytes); });
  if (!gather.is_right(bytes))
    throw InternalError("probe: an all-gather over level " + level.name + " is wrong");
  learn();
  level.processor_share = processor_share(together, options, gather, {bytes, seconds});
}

double gemm_rate(Together& together, const ProbeOptions& options, Dtype dtype) {
  const GemmShape shape{.m = options.gemm_size, .n = options.gemm_size, .k = options.gemm_size};
  Gemm gemm(shape, dtype, options.products_of(dtype));
  gemm.run();
  if (const std::string failure = gemm.check(); !failure.empty())
    throw InternalError("probe: " + failure);
  return shape.flops() / together.seconds(options.runs, [&] { gemm.run(); });
}

double attention_rate_of(Together& together, const ProbeOptions& options, const ProbeResult& result,
                         Dtype dtype) {
  AttentionWork work(attention_of(options.run), dtype, result.threads_per_rank,
                     options.products_of(dtype));
  const double seconds = together.seconds_of_short(options.runs, {[&] { work.run(); }})[0];
  if (const std::string failure = work.check(); !failure.empty())
    throw InternalError("probe: " + failure);
  return work.flops() / seconds;
}

BlockRates block_rates_of(Together& together, const ProbeOptions& options,
                          const ProbeResult& result, const BlockCase& block, Dtype dtype) {
  const auto make = [&](const BlockCase& one) {
    return std::make_unique<ModelWork>(one, dtype, result.threads_per_rank,
                                       options.products_of(dtype));
  };
  const std::unique_ptr<ModelWork> many = make(block);
  std::unique_ptr<ModelWork> few;
  std::vector<std::function<void()>> works = {[&] { many->run(); }};
  if (const auto fewer = with_fewer_tokens(block)) {
    few = make(*fewer);
    works.emplace_back([&] { few->run(); });
  }
  const std::vector<double> seconds = together.seconds_of_short(options.runs, works);
  return block_rates({many.get(), seconds[0]}, {few.get(), seconds.back()},
                     result.other_rates(dtype));
}

}  // namespace

std::vector<Level> worth_telling(std::vector<Level> levels, size_t inside) {
  for (size_t at = inside; at-- > 0;) {
    int64_t ranks = 1;  // whose transfers enter one group below the level around this one
    for (size_t below = 0; below <= at; ++below) ranks *= levels[below].size;
    const double around = levels[at + 1].bytes_per_second / static_cast<double>(ranks),
                 own = levels[at].bytes_per_second * static_cast<double>(levels[at].size) /
                       static_cast<double>(ranks);
    if (own >= kWorthTelling * around) continue;
    levels[at + 1].bytes_per_second /= static_cast<double>(levels[at].size);
    levels[at + 1].size *= levels[at].size;
    levels.erase(levels.begin() + static_cast<int64_t>(at));
  }
  return levels;
}

ProbeResult probe_mpi(comm::MpiSession& session, const ProbeOptions& options) {
  ProbeResult result;
  result.cores = available_cores();
  const comm::MachineCores machine = comm::find_machine_cores(session);
  const int64_t threads = machine.per_rank;
  const std::optional<CoreTree> host = read_core_tree();
  const Binding bound = choose_binding({"auto", threads, machine.usable}, host);
  const std::vector<RankLevel> inside =
      levels_inside(session, host, cores_of_host(session, machine, bound));
  Cluster cluster = levels_of(session, inside);
  const CoreBinding keep(bound.of(session.rank()));
  comm::MpiOptions options_of_world;
  options_of_world.rate_of = [&cluster](int64_t level) {
    return cluster.levels[level].bytes_per_second;
  };
  comm::World& world = session.world(cluster, options_of_world);
  Together together(session, world);
  result.ranks = session.size();
  result.processes = true;
  result.ranks_per_machine = static_cast<int64_t>(machine.usable.size());
  result.cores_per_machine = machine.cores;
  const BlockCase block = block_of(options.run, result.ranks, options.gemm_size / 2);
  result.block = description(block);
  result.threads_per_rank = threads;
  const ThreadLimit limit(result.threads_per_rank);
  result.fp32_flops_per_second = gemm_rate(together, options, Dtype::kFloat32);
  result.fp64_flops_per_second = gemm_rate(together, options, Dtype::kFloat64);
  result.bf16_flops_per_second = gemm_rate(together, options, Dtype::kBfloat16);
  RankTeam team(1, result.threads_per_rank);
  const CopyRates rates = measure_copy(team, options.copy_bytes, options.runs);
  result.memcpy_bytes_per_second = together.least(rates.memcpy_bytes_per_second);
  result.streaming_bytes_per_second = together.least(rates.streaming_bytes_per_second);
  fill_block_rates(
      result, [&](Dtype dtype) { return attention_rate_of(together, options, result, dtype); },
      [&](Dtype dtype) { return block_rates_of(together, options, result, block, dtype); });
  CodecWork coding(options.codec_elements);
  result.codec_bytes_per_second =
      coding.bytes() / together.seconds_of_short(options.runs, {[&] { coding.run(); }})[0];
  result.memory_bytes = usable_memory_bytes() / static_cast<int64_t>(machine.usable.size());
  for (size_t level = 0; level < cluster.levels.size() && result.ranks > 1; ++level)
    measure_level(session, world, together, options, {&cluster, level});
  if (result.ranks == 1) {  // nobody to send to
    cluster.levels.back().bytes_per_second = result.copy_bytes_per_second();
    cluster.levels.back().latency_seconds = 0;
  }
  result.levels = worth_telling(cluster.levels, inside.size());
  const Level& outermost = cluster.levels.back();
  result.transport_bytes_per_second = outermost.bytes_per_second;
  result.transport_latency_seconds = outermost.latency_seconds;
  return result;
}

}  // namespace strait::measure

#endif  // STRAIT_MPI
