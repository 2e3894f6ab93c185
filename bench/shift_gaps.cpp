// What a link loses from one shift to the next, between two hosts of one rank each that compute
// meanwhile or wait: shifts of 1 / chunks of 1.5 MiB, all issued at once, beside products of the
// rank's own thread. Run by bench/netlab, with the link's bytes per second (headers apart) behind
// it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "strait/base/clock.h"
#include "strait/comm/mpi/mpi_world.h"
#include "strait/kernel/gemm.h"
#include "strait/threads/cores.h"

namespace strait {
namespace {

constexpr int64_t kBytes = 3 << 19, kRuns = 7;

class Products {
 public:
  void run() { kernel::gemm(call_, 1); }

 private:
  static constexpr int64_t kRows = 64, kWidth = 768;
  std::vector<float> a_ = std::vector<float>(kRows * kWidth, 0.5F);
  std::vector<float> b_ = std::vector<float>(kWidth * kWidth, 0.25F);
  std::vector<float> c_ = std::vector<float>(kRows * kWidth);
  kernel::GemmCall<float> call_{.rows = kRows,
                                .columns = kWidth,
                                .depth = kWidth,
                                .a = {a_.data(), kWidth, 1},
                                .b = {b_.data(), 1, kWidth},
                                .c = c_.data(),
                                .c_stride = kWidth};
};

class Gaps {
 public:
  Gaps(comm::World& world, double bytes_per_second)
      : shifts_(world.communicator({0, 1}, 1)),
        others_(world.communicator({0, 1}, 0)),
        rate_(bytes_per_second) {}

  /// Median seconds that a shift takes longer than its bytes.
  double measure(int64_t chunks, bool computes) {
    std::vector<double> gaps;
    for (int64_t run = 0; run <= kRuns; ++run) gaps.push_back(run_once(chunks, computes));
    std::sort(gaps.begin() + 1, gaps.end());  // the first warms up
    return gaps[1 + kRuns / 2];
  }
  bool is_right() const {
    return std::ranges::all_of(received_, [&](char byte) { return byte == others_byte(); });
  }

 private:
  char own_byte() const { return static_cast<char>(1 + shifts_.position()); }
  char others_byte() const { return static_cast<char>(2 - shifts_.position()); }

  double run_once(int64_t chunks, bool computes) {
    comm::Call barrier;
    barrier.label = "barrier";
    others_.run(barrier);
    std::vector<comm::Ticket> tickets;
    const int64_t count = 8 * chunks;
    for (int64_t number = 0; number < count; ++number) {
      comm::Call call;
      call.operation = comm::Operation::kShift;
      call.dtype = Dtype::kByte;
      call.counts = {kBytes / chunks};
      call.source = sent_.data();
      call.destination = received_.data() + number % chunks * (kBytes / chunks);
      call.label = "shift";
      tickets.push_back(shifts_.start(call));
    }
    while (computes && !tickets.back().done()) products_.run();
    for (comm::Ticket& ticket : tickets) ticket.wait();
    const double seconds = tickets.back().interval().second - tickets.front().interval().first;
    return seconds / static_cast<double>(count) - static_cast<double>(kBytes / chunks) / rate_;
  }

  comm::Communicator &shifts_, &others_;
  const double rate_;
  std::vector<char> sent_ = std::vector<char>(kBytes, own_byte()),
                    received_ = std::vector<char>(kBytes);
  Products products_;
};

int run(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: bench/netlab --hosts 2 --rate 401mbit -- shift_gaps 47.7e6\n");
    return 2;
  }
  comm::MpiSession session;
  Cluster cluster;
  cluster.levels = {{"world", 2, std::atof(argv[1]), 2e-4, 1}};
  cluster.ranks = 2;
  const CoreBinding keep({static_cast<int>(session.rank())});
  Gaps gaps(session.world(cluster), cluster.levels[0].bytes_per_second);
  for (const bool computes : {false, true})
    for (const int64_t chunks : {1, 2, 4, 8, 16}) {
      const double gap = gaps.measure(chunks, computes);
      if (session.rank() == 0)
        fmt::print("{}, 1/{}: {:.2f} ms between shifts\n", computes ? "computing" : "waiting",
                   chunks, 1e3 * gap);
    }
  const bool right = gaps.is_right();
  if (!right) fmt::print(stderr, "rank {} received other bytes\n", session.rank());
  session.end();
  return right ? 0 : 1;
}

}  // namespace
}  // namespace strait

int main(int argc, char** argv) { return strait::run(argc, argv); }
