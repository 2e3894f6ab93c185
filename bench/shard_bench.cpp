// A product beside the exchange of its rows, on ranks that are threads of one thread each (FLUX,
// Chang et al. 2024): the collective and then the product; tile by tile, copied and then
// multiplied; and tile by tile in place, from or into the memory of the other rank. Results are
// compared bit for bit before anything is timed. Run with --benchmark_repetitions=5 for a spread.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "strait/base/random.h"
#include "strait/comm/sums.h"
#include "strait/comm/threads/thread_world.h"
#include "strait/comm/threads/tile_board.h"
#include "strait/kernel/gemm.h"
#include "strait/measure/rank_team.h"

namespace strait::measure {
namespace {

enum class Way { kCollective, kCopied, kInPlace };
constexpr const char* kWayNames[] = {"collective", "copied", "in_place"};
constexpr double kDeadline = 60;

/// Of a rank: C[rows, columns] = A[rows, depth] W[columns, depth]^T.
struct Shape {
  int64_t rows = 0, depth = 0, columns = 0;
};

struct Case {
  bool gathers = true;  // A's rows come from all ranks; else C's are summed up where they belong
  Shape shape;
  int64_t ranks = 2, chunks = 1;  // tiles of a shard
  Way way = Way::kCollective;
};

Cluster flat(int64_t ranks) {
  Cluster cluster;
  cluster.levels = {{"world", ranks, 1e10, 1e-6, 1}};
  cluster.ranks = ranks;
  return cluster;
}

std::vector<float> numbers(int64_t count, uint64_t seed) {
  const RandomStream stream(seed, "bench");
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(stream.below(i, 2001)) / 1000.0F - 1.0F;
  return values;
}

/// All ranks of one case, and what they hold.
class Pair {
 public:
  explicit Pair(const Case& c)
      : c_(c),
        shard_(c.shape.rows / c.ranks),
        worlds_(comm::make_thread_worlds(c.ranks, flat(c.ranks))),
        board_(c.ranks, c.ranks * c.chunks) {
    const Shape& s = c.shape;
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      const auto seed = static_cast<uint64_t>(rank);
      Rank& own = ranks_.emplace_back();
      own.weights = numbers(s.columns * s.depth, 100 + seed);
      own.rows = numbers((c.gathers ? shard_ : s.rows) * s.depth, seed);
      if (c.gathers) own.all.resize(static_cast<size_t>(s.rows * s.depth));
      own.made.resize(static_cast<size_t>(s.rows * s.columns));
      if (!c.gathers) own.inbox.resize(own.made.size());
      if (!c.gathers) own.sum.resize(static_cast<size_t>(shard_ * s.columns));
    }
  }

  void run(int64_t rank) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    ++own.epoch;
    c_.gathers ? gather(rank, own) : scatter(rank, own);
  }

  const std::vector<float>& result(int64_t rank) const {
    const Rank& own = ranks_[static_cast<size_t>(rank)];
    return c_.gathers ? own.made : own.sum;
  }

 private:
  struct Rank {
    std::vector<float> rows, weights, all, made, inbox, sum;
    uint32_t epoch = 0;
  };

  void multiply(const Rank& own, const float* a, int64_t rows, float* c) const {
    const Shape& s = c_.shape;
    kernel::GemmCall<float> call;
    call.rows = rows;
    call.columns = s.columns;
    call.depth = s.depth;
    call.a = {a, s.depth, 1};
    call.b = {own.weights.data(), 1, s.depth};
    call.c = c;
    call.c_stride = s.columns;
    kernel::gemm(call, 1);
  }

  void exchange(int64_t rank, comm::Operation operation, const float* from, float* to,
                int64_t width) {
    std::vector<int64_t> members;
    for (int64_t member = 0; member < c_.ranks; ++member) members.push_back(member);
    comm::Call call;
    call.operation = operation;
    call.dtype = Dtype::kFloat32;
    call.source = from;
    call.destination = to;
    call.counts.assign(static_cast<size_t>(c_.ranks), shard_ * width);
    worlds_->world(rank).communicator(members, 0).run(call);
  }

  /// Calls act(owner, tile, first row of the shard, rows) for the tiles of the ranks behind.
  template <class Act>
  void for_each_tile(int64_t rank, const Act& act) const {
    const int64_t chunk = (shard_ + c_.chunks - 1) / c_.chunks;
    for (int64_t step = 1; step < c_.ranks; ++step)
      for (int64_t tile = 0; tile * chunk < shard_; ++tile)
        act((rank + step) % c_.ranks, tile, tile * chunk, std::min(chunk, shard_ - tile * chunk));
  }

  void gather(int64_t rank, Rank& own) {
    const Shape& s = c_.shape;
    if (c_.way == Way::kCollective) {
      exchange(rank, comm::Operation::kAllGather, own.rows.data(), own.all.data(), s.depth);
      return multiply(own, own.all.data(), s.rows, own.made.data());
    }
    board_.await_readers(rank, own.epoch - 1, kDeadline);  // here a norm would write the rows
    for (int64_t tile = 0; tile < c_.chunks; ++tile) board_.publish(rank, tile, own.epoch);
    multiply(own, own.rows.data(), shard_,
             &own.made[static_cast<size_t>(rank * shard_ * s.columns)]);
    for_each_tile(rank, [&](int64_t owner, int64_t tile, int64_t first, int64_t rows) {
      board_.await(owner, tile, own.epoch, kDeadline);
      const float* from =
          &ranks_[static_cast<size_t>(owner)].rows[static_cast<size_t>(first * s.depth)];
      const int64_t row = owner * shard_ + first;
      if (c_.way == Way::kCopied) {
        float* copy = &own.all[static_cast<size_t>(row * s.depth)];
        comm::copy_bytes(from, copy, rows * s.depth * static_cast<int64_t>(sizeof(float)));
        from = copy;
      }
      multiply(own, from, rows, &own.made[static_cast<size_t>(row * s.columns)]);
    });
    board_.finish(rank, own.epoch);
  }

  void scatter(int64_t rank, Rank& own) {
    const Shape& s = c_.shape;
    if (c_.way == Way::kCollective) {
      multiply(own, own.rows.data(), s.rows, own.made.data());
      return exchange(rank, comm::Operation::kReduceScatter, own.made.data(), own.sum.data(),
                      s.columns);
    }
    board_.await_readers(rank, own.epoch - 1, kDeadline);  // inboxes are free again
    for_each_tile(rank, [&](int64_t owner, int64_t tile, int64_t first, int64_t rows) {
      const int64_t row = owner * shard_ + first;
      const auto from = static_cast<size_t>(row * s.depth);
      auto& inbox = ranks_[static_cast<size_t>(owner)].inbox;
      float* there = &inbox[static_cast<size_t>((rank * shard_ + first) * s.columns)];
      float* made =
          c_.way == Way::kInPlace ? there : &own.made[static_cast<size_t>(row * s.columns)];
      multiply(own, &own.rows[from], rows, made);
      if (made != there)
        comm::copy_bytes(made, there, rows * s.columns * static_cast<int64_t>(sizeof(float)));
      board_.publish(rank, owner * c_.chunks + tile, own.epoch);
    });
    const auto at = static_cast<size_t>(rank * shard_ * s.columns);
    multiply(own, &own.rows[static_cast<size_t>(rank * shard_ * s.depth)], shard_, &own.made[at]);
    std::vector<const void*> parts;
    for (int64_t from = 0; from < c_.ranks; ++from) {
      for (int64_t tile = 0; from != rank && tile < c_.chunks; ++tile)
        board_.await(from, rank * c_.chunks + tile, own.epoch, kDeadline);
      parts.push_back(from == rank ? &own.made[at]
                                   : &own.inbox[static_cast<size_t>(from * shard_ * s.columns)]);
    }
    comm::sum_in_order(Dtype::kFloat32, parts, own.sum.data(), shard_ * s.columns, false);
    board_.finish(rank, own.epoch);
  }

  const Case c_;
  const int64_t shard_;
  std::unique_ptr<comm::ThreadWorlds> worlds_;
  comm::TileBoard board_;
  std::vector<Rank> ranks_;
};

/// "" where all ranks of a way have the bits of the collective and the product.
std::string check(const Case& c, Pair& pair, RankTeam& team) {
  Case plain = c;
  plain.way = Way::kCollective;
  Pair reference(plain);
  team.run([&](int64_t rank) { reference.run(rank); });
  for (int64_t rank = 0; rank < c.ranks; ++rank) {
    const std::vector<float>&got = pair.result(rank), &want = reference.result(rank);
    if (std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) != 0)
      return "rank " + std::to_string(rank) + " has other bits than the collective";
  }
  return "";
}

void run_case(benchmark::State& state, const Case& c) {
  RankTeam team(c.ranks, 1);
  Pair pair(c);
  for (int warm = 0; warm < 3; ++warm) team.run([&](int64_t rank) { pair.run(rank); });
  const std::string failure = check(c, pair, team);
  if (!failure.empty()) return state.SkipWithError(failure.c_str());
  for (auto _ : state) state.SetIterationTime(team.run([&](int64_t rank) { pair.run(rank); }));
  const Shape& s = c.shape;
  state.counters["flops"] =
      benchmark::Counter(2.0 * static_cast<double>(c.ranks * s.rows * s.columns * s.depth) *
                             static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}

/// `up` and `down` of a width of 768 at x = 2, and a narrow one whose product hides less.
bool register_cases() {
  const auto add = [](const Case& c) {
    const Shape& s = c.shape;
    const std::string chunks =
        c.way == Way::kCollective ? "" : "/tiles:" + std::to_string(c.chunks);
    const std::string name = std::string(c.gathers ? "gather/" : "scatter/") +
                             std::to_string(s.rows) + "x" + std::to_string(s.depth) + "x" +
                             std::to_string(s.columns) + "/" + kWayNames[static_cast<int>(c.way)] +
                             chunks;
    benchmark::RegisterBenchmark(name.c_str(), run_case, c)->UseManualTime();
  };
  for (const bool gathers : {true, false})
    for (const int64_t rows : {512, 2048})
      for (const int64_t wide : {3072, 256}) {
        const Shape shape = gathers ? Shape{rows, 768, wide / 2} : Shape{rows, wide / 2, 768};
        add({gathers, shape});
        for (const int64_t chunks : {1, 2, 4})
          for (const Way way : {Way::kCopied, Way::kInPlace}) add({gathers, shape, 2, chunks, way});
      }
  return true;
}
const bool registered = register_cases();

}  // namespace
}  // namespace strait::measure
