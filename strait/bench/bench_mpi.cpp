#ifdef STRAIT_MPI

#include "strait/bench/bench_mpi.h"

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "strait/base/clock.h"
#include "strait/measure/copy.h"
#include "strait/measure/gloo_peer.h"
#include "strait/topology/cluster.h"

namespace strait::measure {
namespace {

/// Calls in a row inside one timed run.
int64_t repeats_for(int64_t bytes) { return std::clamp<int64_t>((8 << 20) / bytes, 1, 200); }

/// Hosts as one level, the ranks of each as another.
Cluster cluster_of(const comm::MpiSession& session) {
  Cluster cluster;
  cluster.name = "mpi";
  cluster.ranks = session.size();
  const int64_t here = session.ranks_on_host();
  if (here < session.size() && here > 1 && session.size() % here == 0)
    cluster.levels = {{"host", here, 5e9, 2e-6, 1},
                      {"world", session.size() / here, 125e6, 50e-6, 1}};
  else
    cluster.levels = {{"world", session.size(), 5e9, 2e-6, 1}};
  return cluster;
}

/// One rank's buffers and call.
class Ours {
 public:
  Ours(const CollectiveCase& collective, comm::MpiSession& session)
      : case_(collective), session_(session), world_(session.world(cluster_of(session))) {
    const int64_t width = dtype_bytes(case_.dtype);
    part_ = case_.vector_bytes() / width / case_.ranks;
    source_ = static_cast<char*>(session.window().allocate(bytes()));
    destination_ = static_cast<char*>(session.window().allocate(bytes()));
    std::memset(source_, 0, static_cast<size_t>(bytes()));
    std::memset(destination_, 0, static_cast<size_t>(bytes()));
    std::vector<int64_t> members(static_cast<size_t>(case_.ranks));
    std::iota(members.begin(), members.end(), 0);
    communicator_ = &world_.communicator(members, 0);
    call_.operation = operation_by_name(case_.operation);
    call_.dtype = case_.dtype;
    call_.counts.assign(static_cast<size_t>(case_.ranks), part_);
    call_.label = "bench " + case_.operation;
    call_.source = source_;
    call_.destination = destination_;
    const int64_t rank = world_.rank();
    if (call_.operation == comm::Operation::kAllGather)
      call_.source = destination_ + part_ * rank * width;
    if (call_.operation == comm::Operation::kAllToAll) call_.receive_counts = call_.counts;
    if (call_.operation == comm::Operation::kBroadcast) {
      call_.counts = {part_ * case_.ranks};
      if (rank == 0) call_.destination = source_;
    }
  }
  ~Ours() {
    session_.window().release(source_);
    session_.window().release(destination_);
  }

  int64_t bytes() const { return part_ * case_.ranks * dtype_bytes(case_.dtype); }
  int64_t part() const { return part_; }
  void run() { communicator_->run(call_); }

  /// Empty, or the first element that is wrong.
  std::string check() {
    return case_.dtype == Dtype::kFloat32 ? check_as<float>() : check_as<double>();
  }

 private:
  template <class T>
  std::string check_as() {
    const int64_t rank = world_.rank();
    const bool gathers = call_.operation == comm::Operation::kAllGather;
    const bool scatters = call_.operation == comm::Operation::kReduceScatter;
    T* source = const_cast<T*>(static_cast<const T*>(call_.source));
    const T* result = static_cast<const T*>(call_.destination);
    std::fill_n(reinterpret_cast<T*>(destination_), part_ * case_.ranks, T(-1));
    for (int64_t i = 0; i < (gathers ? part_ : part_ * case_.ranks); ++i)
      source[i] = static_cast<T>(start_value(rank, i));
    run();
    for (int64_t i = 0; i < (scatters ? part_ : part_ * case_.ranks); ++i) {
      const double wanted = wanted_value(call_.operation, case_.ranks, part_, rank, i);
      if (static_cast<double>(result[i]) != wanted)
        return case_.operation + ": element " + std::to_string(i) + " on rank " +
               std::to_string(rank) + " is " + std::to_string(result[i]) + ", not " +
               std::to_string(wanted);
    }
    return "";
  }

  const CollectiveCase case_;
  comm::MpiSession& session_;
  comm::World& world_;
  int64_t part_ = 0;
  char* source_ = nullptr;
  char* destination_ = nullptr;
  comm::Communicator* communicator_ = nullptr;
  comm::Call call_;
};

/// MPI's own operation on ordinary memory.
class MpiOwn {
 public:
  /// MPI 3 counts elements in an int.
  static bool can_count(int64_t elements) { return elements <= std::numeric_limits<int>::max(); }
  explicit MpiOwn(const CollectiveCase& collective, int64_t part)
      : operation_(operation_by_name(collective.operation)),
        type_(collective.dtype == Dtype::kFloat32 ? MPI_FLOAT : MPI_DOUBLE),
        part_(static_cast<int>(part)),
        whole_(static_cast<int>(part * collective.ranks)),
        source_(static_cast<size_t>(whole_) * static_cast<size_t>(dtype_bytes(collective.dtype)),
                1),
        destination_(source_.size(), 1) {}

  void run() {
    switch (operation_) {
      case comm::Operation::kAllGather:
        MPI_Allgather(source_.data(), part_, type_, destination_.data(), part_, type_,
                      MPI_COMM_WORLD);
        return;
      case comm::Operation::kReduceScatter:
        MPI_Reduce_scatter_block(source_.data(), destination_.data(), part_, type_, MPI_SUM,
                                 MPI_COMM_WORLD);
        return;
      case comm::Operation::kAllReduce:
        MPI_Allreduce(source_.data(), destination_.data(), whole_, type_, MPI_SUM, MPI_COMM_WORLD);
        return;
      case comm::Operation::kAllToAll:
        MPI_Alltoall(source_.data(), part_, type_, destination_.data(), part_, type_,
                     MPI_COMM_WORLD);
        return;
      default:
        MPI_Bcast(source_.data(), whole_, type_, 0, MPI_COMM_WORLD);
    }
  }

 private:
  comm::Operation operation_;
  MPI_Datatype type_;
  int part_, whole_;
  std::vector<char> source_, destination_;
};

double slowest(double seconds) {
  double most = 0;
  MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return most;
}

struct Entry {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds;
};

/// Run r begins with entry r mod n.
void time_all(std::vector<Entry>& entries, int64_t repeats, const TimingOptions& options) {
  const int64_t n = static_cast<int64_t>(entries.size());
  for (int64_t run = -options.warmups; run < options.runs; ++run)
    for (int64_t at = 0; at < n; ++at) {
      Entry& entry = entries[static_cast<size_t>((at + std::max<int64_t>(run, 0)) % n)];
      MPI_Barrier(MPI_COMM_WORLD);
      const double began = now_seconds();
      for (int64_t i = 0; i < repeats; ++i) entry.run();
      const double seconds = slowest((now_seconds() - began) / static_cast<double>(repeats));
      if (run >= 0) entry.seconds.push_back(seconds);
    }
}

/// What the entry of that name took, if there is one.
BenchPeer peer_row(const std::string& name, const std::string& version,
                   const std::vector<Entry>& entries, const std::string& missing) {
  BenchPeer peer{name, version, std::nullopt, missing};
  for (const Entry& entry : entries)
    if (entry.name == name) peer.seconds = report::statistics_of(entry.seconds);
  return peer;
}

std::string first_failure(comm::MpiSession& session, const std::string& own) {
  for (const std::string& failure : session.exchange(own))
    if (!failure.empty()) return failure;
  return "";
}

}  // namespace

BenchRow bench_collective_mpi(const CollectiveCase& collective, comm::MpiSession& session,
                              const TimingOptions& options) {
  check_case(collective);
  Ours ours(collective, session);
  BenchRow row;
  row.bench_case = Json::object({{"operation", collective.operation},
                                 {"backend", collective.backend},
                                 {"ranks", collective.ranks},
                                 {"bytes", ours.bytes()},
                                 {"dtype", dtype_name(collective.dtype)},
                                 {"codec", collective.codec}});
  row.failure = first_failure(session, ours.check());
  if (!row.failure.empty()) return row;
  std::optional<MpiOwn> own;
  if (MpiOwn::can_count(ours.part() * collective.ranks)) own.emplace(collective, ours.part());
  const std::unique_ptr<GlooPeer> gloo = make_gloo_peer(collective, session, ours.part());
  RankTeam team(1, 1);
  const double per_rank =
      moved_bytes(operation_by_name(collective.operation), collective.ranks, ours.bytes()) /
      (2.0 * static_cast<double>(collective.ranks));
  CopyBuffers copies(team, std::max<int64_t>(1, std::llround(per_rank)));
  std::vector<Entry> entries = {{"strait", [&] { ours.run(); }, {}},
                                {"copy", [&] { copies.copy(false); }, {}},
                                {"streaming copy", [&] { copies.copy(true); }, {}}};
  if (own) entries.push_back({"open-mpi", [&] { own->run(); }, {}});
  if (gloo->missing().empty()) entries.push_back({"gloo", [&] { gloo->run(); }, {}});
  time_all(entries, repeats_for(ours.bytes()), options);
  row.seconds = report::statistics_of(entries[0].seconds);
  row.work = static_cast<double>(ours.bytes());
  row.rate_unit = "bytes_per_second";
  if (session.ranks_on_host() == session.size())
    row.bound =
        BenchBound{"memory-copy", std::min(report::statistics_of(entries[1].seconds).median,
                                           report::statistics_of(entries[2].seconds).median)};
  row.peers.push_back(peer_row("open-mpi", comm::mpi_version(), entries,
                               own ? "" : "MPI counts elements in 32 bits"));
  row.peers.push_back(peer_row("gloo", gloo->version(), entries, gloo->missing()));
  return row;
}

}  // namespace strait::measure

#endif
