#include "strait/comm/mpi/mpi_world.h"

#include <ifaddrs.h>
#include <mpi.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "strait/base/errors.h"
#include "strait/comm/call_check.h"
#include "strait/comm/mpi/host_bell.h"
#include "strait/comm/mpi/mpi_communicator.h"

namespace strait::comm {
namespace {

using Key = std::pair<std::vector<int64_t>, int64_t>;  // members, lane

/// Spinning pays while every rank has a core; otherwise it takes the core from whom it waits for.
double default_spin_seconds(int64_t ranks_on_host) {
  const int64_t cores = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  return ranks_on_host <= cores ? 100e-6 : 50e-6;
}

class MpiWorld final : public World {
 public:
  /// `bells`: where alarms travel between hosts, or null.
  MpiWorld(std::unique_ptr<MpiSite> site, Messages* bells) : site_(std::move(site)) {
    std::vector<int64_t> elsewhere;
    for (int64_t rank = 0; rank < size(); ++rank)
      if (site_->place(rank) < 0) elsewhere.push_back(rank);
    if (bells != nullptr && !elsewhere.empty())
      bell_ = std::make_unique<HostBell>(*bells, site_->board, this->rank(), elsewhere,
                                         [this] { nudge_all(); });
  }
  ~MpiWorld() override {
    bell_.reset();
    site_->row().ended();
    for (const auto& [key, communicator] : communicators_) communicator->stop();
  }

  int64_t rank() const override { return site_->rank(); }
  int64_t size() const override { return site_->cluster.ranks; }
  WaitRow* waits() override { return &site_->row(); }

  Communicator& communicator(const std::vector<int64_t>& members, int64_t lane) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<MpiCommunicator>& found = communicators_[{members, lane}];
    if (found) return *found;
    check_members(members, rank(), size());
    auto made = std::make_unique<MpiCommunicator>(*site_, members, lane);
    for (const auto& [key, other] : communicators_)
      ensure(!other || other->tag() != made->tag(),
             "two communicators of this rank have the same message tag");
    found = std::move(made);
    return *found;
  }

  void abort(const std::string& reason, const ErrorPlace& place) override {
    site_->board.ring(rank(), reason, place);
    nudge_all();
  }

 private:
  void nudge_all() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, communicator] : communicators_)
      if (communicator) communicator->nudge();
  }

  std::unique_ptr<MpiSite> site_;
  std::unique_ptr<HostBell> bell_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<MpiCommunicator>> communicators_;
};

std::vector<std::string> all_host_names(int64_t size) {
  char name[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0;
  MPI_Get_processor_name(name, &length);
  std::vector<char> all(static_cast<size_t>(size) * MPI_MAX_PROCESSOR_NAME);
  MPI_Allgather(name, MPI_MAX_PROCESSOR_NAME, MPI_CHAR, all.data(), MPI_MAX_PROCESSOR_NAME,
                MPI_CHAR, MPI_COMM_WORLD);
  std::vector<std::string> names;
  for (int64_t at = 0; at < size; ++at)
    names.emplace_back(all.data() + at * MPI_MAX_PROCESSOR_NAME);
  return names;
}

}  // namespace

struct MpiSession::State {
  int rank = 0, size = 1;
  bool abandoned = false;
  MPI_Comm host = MPI_COMM_NULL, data = MPI_COMM_NULL, bells = MPI_COMM_NULL;
  std::vector<std::string> host_names;
  std::vector<int64_t> here;       // ranks on this host
  std::vector<int64_t> processes;  // theirs
  std::unique_ptr<Messages> messages, bell_messages;
  std::unique_ptr<HostMemory> memory;
  std::unique_ptr<MpiWorld> world;

  void await(MPI_Request request);
  std::optional<int64_t> gone() const;
};

std::optional<int64_t> MpiSession::State::gone() const {
  for (size_t at = 0; at < processes.size(); ++at)
    if (::kill(static_cast<pid_t>(processes[at]), 0) != 0 && errno == ESRCH) return here[at];
  return std::nullopt;
}

/// Until the collective ends. PeerLost when a process of this host is gone.
void MpiSession::State::await(MPI_Request request) {
  constexpr double kLook = 50e-3;
  constexpr std::chrono::microseconds kShortest(50), kLongest(2000);
  SteadyTime next_look = deadline_after(kLook);
  std::optional<int64_t> lost;
  for (auto sleep = kShortest;; sleep = std::min(2 * sleep, kLongest)) {
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) return;
    if (lost) break;  // nothing came before it ended
    std::this_thread::sleep_for(sleep);
    if (std::chrono::steady_clock::now() < next_look) continue;
    next_look = deadline_after(kLook);
    lost = gone();
  }
  abandoned = true;
  ErrorPlace place;
  place.rank = *lost;
  throw PeerLost("the process of rank " + std::to_string(*lost) +
                     " has ended, and the others cannot go on without it",
                 place);
}

namespace {

/// MPI_Init waits for all ranks without a limit, and nothing but the end of the process ends that.
class StartWatch {
 public:
  StartWatch() : worker_([this] { work(); }) {}
  ~StartWatch() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      started_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

 private:
  void work() {
    constexpr std::chrono::seconds kLimit(120);
    std::unique_lock<std::mutex> lock(mutex_);
    if (changed_.wait_for(lock, kLimit, [this] { return started_; })) return;
    std::fprintf(stderr,
                 "strait: error: MPI_Init has waited for the other ranks for %lld s: one was lost "
                 "while it started\n",
                 static_cast<long long>(kLimit.count()));
    std::_Exit(static_cast<int>(ExitCode::kPeerLost));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::thread worker_;
};

}  // namespace

MpiSession::MpiSession() : state_(std::make_unique<State>()) {
  int provided = 0;
  {
    const StartWatch watch;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  }
  if (provided < MPI_THREAD_SERIALIZED)
    throw InternalError("this MPI library does not support calls from several threads");
  MPI_Comm_rank(MPI_COMM_WORLD, &state_->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &state_->size);
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, state_->rank, MPI_INFO_NULL,
                      &state_->host);
  MPI_Comm_dup(MPI_COMM_WORLD, &state_->data);
  MPI_Comm_dup(MPI_COMM_WORLD, &state_->bells);
  state_->host_names = all_host_names(state_->size);
  int ranks_here = 1;
  MPI_Comm_size(state_->host, &ranks_here);
  state_->here.resize(static_cast<size_t>(ranks_here));
  const int64_t own = state_->rank;
  MPI_Allgather(&own, 1, MPI_INT64_T, state_->here.data(), 1, MPI_INT64_T, state_->host);
  std::vector<int64_t> processes(state_->here.size());
  const int64_t process = ::getpid();
  MPI_Allgather(&process, 1, MPI_INT64_T, processes.data(), 1, MPI_INT64_T, state_->host);
  state_->processes = std::move(processes);
}

MpiSession::~MpiSession() { end(); }

void MpiSession::end() {
  state_->world.reset();
  if (state_->abandoned) return;
  state_->abandoned = true;
  MPI_Request barrier = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &barrier);
  try {
    state_->await(barrier);  // nobody unmaps what another still reads
  } catch (const PeerLost&) {
    return;  // what this rank had to do is done
  }
  state_->memory.reset();
  MPI_Comm_free(&state_->data);
  MPI_Comm_free(&state_->bells);
  MPI_Comm_free(&state_->host);
  MPI_Finalize();
}

int64_t MpiSession::rank() const { return state_->rank; }
int64_t MpiSession::size() const { return state_->size; }
int64_t MpiSession::ranks_on_host() const { return static_cast<int64_t>(state_->here.size()); }
const std::vector<std::string>& MpiSession::host_names() const { return state_->host_names; }
void MpiSession::abandon() { state_->abandoned = true; }

void MpiSession::require_network() const {
  if (ranks_on_host() == size()) return;
  ifaddrs* addresses = nullptr;
  if (::getifaddrs(&addresses) != 0) return;
  bool found = false;
  for (const ifaddrs* at = addresses; at != nullptr; at = at->ifa_next) {
    const bool internet = at->ifa_addr != nullptr && (at->ifa_addr->sa_family == AF_INET ||
                                                      at->ifa_addr->sa_family == AF_INET6);
    found |= internet && (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_LOOPBACK) == 0;
  }
  ::freeifaddrs(addresses);
  if (!found)
    throw UserError("the ranks live on several hosts, but " + host_names()[state_->rank] +
                    " has no network interface that is up, other than loopback");
}

World& MpiSession::world(const Cluster& cluster, const MpiOptions& options) {
  if (cluster.ranks != size() || cluster.levels.empty())
    throw UserError("a world of " + std::to_string(size()) +
                    " MPI ranks on a cluster laid out for " + std::to_string(cluster.ranks) +
                    " ranks in " + std::to_string(cluster.levels.size()) + " levels");
  ensure(!state_->world, "MpiSession::world is called once");
  state_->messages = std::make_unique<Messages>(state_->data);
  state_->bell_messages = std::make_unique<Messages>(state_->bells);
  state_->memory = std::make_unique<HostMemory>(state_->host, HostBoard::bytes(ranks_on_host()));
  auto site = std::make_unique<MpiSite>(*state_->messages, *state_->memory, cluster, state_->here);
  site->algorithm = options.algorithm;
  site->spin_seconds =
      options.spin_seconds < 0.0 ? default_spin_seconds(ranks_on_host()) : options.spin_seconds;
  state_->world = std::make_unique<MpiWorld>(std::move(site), state_->bell_messages.get());
  return *state_->world;
}

memory::PageSource& MpiSession::window() {
  ensure(state_->memory != nullptr, "MpiSession::window before world()");
  return *state_->memory;
}

std::vector<std::string> MpiSession::exchange(const std::string& text) {
  const std::unique_lock<std::mutex> lock = lock_mpi();
  const int bytes = static_cast<int>(text.size());
  std::vector<int> sizes(static_cast<size_t>(size())), offsets(static_cast<size_t>(size()), 0);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgather(&bytes, 1, MPI_INT, sizes.data(), 1, MPI_INT, MPI_COMM_WORLD, &request);
  state_->await(request);
  for (size_t at = 1; at < sizes.size(); ++at) offsets[at] = offsets[at - 1] + sizes[at - 1];
  std::string all(static_cast<size_t>(offsets.back() + sizes.back()), '\0');
  MPI_Iallgatherv(text.data(), bytes, MPI_CHAR, all.data(), sizes.data(), offsets.data(), MPI_CHAR,
                  MPI_COMM_WORLD, &request);
  state_->await(request);
  std::vector<std::string> texts;
  for (size_t at = 0; at < sizes.size(); ++at)
    texts.push_back(all.substr(static_cast<size_t>(offsets[at]), static_cast<size_t>(sizes[at])));
  return texts;
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  return text;
}

}  // namespace strait::comm
