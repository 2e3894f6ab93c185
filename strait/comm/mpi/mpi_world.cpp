#include "strait/comm/mpi/mpi_world.h"

#include <fmt/format.h>
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
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "strait/base/errors.h"
#include "strait/comm/call_check.h"
#include "strait/comm/launch.h"
#include "strait/comm/mpi/host_bell.h"
#include "strait/comm/mpi/inquiry.h"
#include "strait/comm/mpi/mpi_communicator.h"
#include "strait/comm/mpi/roll_call.h"

namespace strait::comm {
namespace {

constexpr double kStartSeconds =
    120;  // for processes to start and meet, before a deadline is known

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
    if (bells == nullptr || elsewhere.empty()) return;
    HostBell::Actions actions;
    actions.told = [this] { nudge_all(); };
    actions.stand = [this](double deadline_seconds) {
      return standings_text(site_->standings_here(deadline_seconds), site_->here, now_seconds());
    };
    bell_ = std::make_unique<HostBell>(*bells, site_->board, this->rank(), elsewhere,
                                       std::move(actions));
    site_->inquire = [this](std::vector<trace::Standing>& ranks, double deadline_seconds) {
      inquire(ranks, deadline_seconds);
    };
  }
  ~MpiWorld() override {
    site_->row().ended();
    for (const auto& [key, communicator] : communicators_) communicator->stop();
    bell_.reset();
  }

  int64_t rank() const override { return site_->rank(); }
  int64_t size() const override { return site_->cluster.ranks; }
  WaitRow* waits() override { return &site_->row(); }
  bool begins_step(int64_t step, bool asked, double deadline_seconds) override {
    LastStep& last = site_->board.last_step();
    if (asked) last.ask();
    if (last.begin(step, site_->row().steps_begun())) return true;
    return step <
           (bell_ ? decided_last_step(step, deadline_seconds) : site_->board.settle_last_step());
  }

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

  void abort(const std::string& reason, const ErrorPlace& place, Cause cause) override {
    site_->board.ring(rank(), reason, place, cause);
    nudge_all();
  }

 private:
  /// Bells carry it to the other hosts and back.
  int64_t decided_last_step(int64_t step, double deadline_seconds) {
    Call call;
    call.deadline_seconds = deadline_seconds;
    call.step = step;
    call.label = "agree on the last step";
    const SteadyTime deadline = site_->clock.deadline_after(deadline_seconds);
    while (true) {
      if (const auto steps = site_->board.last_step().decided()) return *steps;
      if (site_->rung()) site_->raise_alarm(call);
      if (site_->clock.now() > deadline)
        raise(timeout(call, rank(), {}, site_->standings(deadline_seconds), {}));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  /// One answer of each other host is enough.
  void inquire(std::vector<trace::Standing>& ranks, double deadline_seconds) {
    constexpr double kPatience = 2;
    std::set<int64_t> unknown;
    for (int64_t rank = 0; rank < size(); ++rank)
      if (site_->place(rank) < 0) unknown.insert(rank);
    bell_->ask(deadline_seconds, kPatience, [&](const std::string& answer) {
      for (const int64_t rank : take_standings(answer, now_seconds(), ranks)) unknown.erase(rank);
      return !unknown.empty() && !site_->rung();
    });
  }
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
  std::unique_ptr<Messages> messages, bell_messages, meetings;
  std::unique_ptr<RollCall> roll_call;
  std::exception_ptr failure;  // of an exchange
  double deadline_seconds = kStartSeconds;
  /// Where ranks may be apart.
  double apart_seconds() const { return std::max(deadline_seconds, 10.0); }
  Stuck stuck;
  std::unique_ptr<HostMemory> memory;
  std::unique_ptr<MpiWorld> world;

  bool has_ended(int64_t of_rank) const;
};

bool MpiSession::State::has_ended(int64_t of_rank) const {
  for (size_t at = 0; at < processes.size(); ++at)
    if (here[at] == of_rank)
      return ::kill(static_cast<pid_t>(processes[at]), 0) != 0 && errno == ESRCH;
  return false;
}

namespace {

/// MPI waits for all ranks without a limit, and nothing but the end of the process ends that.
class PhaseWatch {
 public:
  PhaseWatch(const std::string& phase, double seconds, const MpiSession::Stuck& stuck)
      : phase_(phase), seconds_(seconds), stuck_(stuck), worker_([this] { work(); }) {}
  ~PhaseWatch() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto limit = std::chrono::duration<double>(seconds_);
    if (changed_.wait_for(lock, limit, [this] { return over_; }) || !stuck_) return;
    ErrorPlace place;
    place.operation = phase_;
    stuck_(std::make_exception_ptr(
        Timeout(fmt::format("{} has waited for the other ranks for {:g} s: one of them was lost",
                            phase_, seconds_),
                place)));
  }

  const std::string phase_;
  const double seconds_;
  const MpiSession::Stuck stuck_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread worker_;
};

}  // namespace

namespace {

/// Open MPI's handshake for a long message over TCP travels on the connection that the data of the
/// opposite direction fills: up to a send buffer (1 MiB) of it goes first, and a link that could
/// carry both directions carries one. Between two hosts a second connection per pair lets
/// handshakes pass. Among more, where everybody sends to everybody, plain sends keep the links
/// busier still (4 hosts: 1.01 to 1.09 instead of 1.2 to 1.7 of what the wire needs), for a little
/// more processor time. What the user sets stands, alone: both together hang.
void set_transport_defaults() {
  if (std::getenv("OMPI_MCA_btl_tcp_links") || std::getenv("OMPI_MCA_btl_tcp_flags")) return;
  if (find_launch().hosts > 2)
    ::setenv("OMPI_MCA_btl_tcp_flags", "1", 0);
  else
    ::setenv("OMPI_MCA_btl_tcp_links", "2", 0);
}

}  // namespace

MpiSession::MpiSession(Stuck stuck) : state_(std::make_unique<State>()) {
  state_->stuck = std::move(stuck);
  const PhaseWatch watch("MPI_Init", kStartSeconds, state_->stuck);
  set_transport_defaults();
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
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
  state_->meetings = std::make_unique<Messages>(MPI_COMM_WORLD);
  state_->roll_call =
      std::make_unique<RollCall>(*state_->meetings, state_->rank, state_->size,
                                 [this](int64_t rank) { return state_->has_ended(rank); });
}

MpiSession::~MpiSession() { end(); }

void MpiSession::end() {
  state_->world.reset();
  if (state_->abandoned) return;
  try {
    exchange("", "end the run");  // nobody unmaps what another still reads
  } catch (const Error&) {
    return;  // what this rank had to do is done
  }
  state_->abandoned = true;
  state_->memory.reset();
  const PhaseWatch watch("MPI_Finalize", state_->apart_seconds(), state_->stuck);
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
  const auto tell_host = [this](const std::string& text) {
    const std::vector<std::string> all = exchange(text, "share memory");
    std::vector<std::string> texts;
    for (const int64_t rank : state_->here) texts.push_back(all[rank]);
    return texts;
  };
  const auto place = std::find(state_->here.begin(), state_->here.end(), rank());
  state_->memory = std::make_unique<HostMemory>(place - state_->here.begin(),
                                                HostBoard::bytes(ranks_on_host()), tell_host);
  auto site = std::make_unique<MpiSite>(*state_->messages, *state_->memory, cluster, state_->here);
  site->algorithm = options.algorithm;
  site->at_turn = options.at_turn;
  site->repeats = options.repeats;
  site->rate_of = options.rate_of;
  site->spin_seconds =
      options.spin_seconds < 0.0 ? default_spin_seconds(ranks_on_host()) : options.spin_seconds;
  state_->world = std::make_unique<MpiWorld>(std::move(site), state_->bell_messages.get());
  return *state_->world;
}

memory::PageSource& MpiSession::window() {
  ensure(state_->memory != nullptr, "MpiSession::window before world()");
  return *state_->memory;
}

void MpiSession::set_deadline(double seconds) { state_->deadline_seconds = seconds; }

std::vector<std::string> MpiSession::exchange(const std::string& text, const std::string& purpose) {
  if (state_->failure) std::rethrow_exception(state_->failure);
  try {
    return state_->roll_call->meet(
        text, purpose, state_->world ? state_->deadline_seconds : state_->apart_seconds());
  } catch (...) {
    state_->failure = std::current_exception();
    state_->abandoned = true;
    throw;
  }
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  return text;
}

}  // namespace strait::comm
