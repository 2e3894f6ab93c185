#include "strait/comm/mpi/mpi_site.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>

#include "strait/comm/sums.h"

namespace strait::comm {
namespace {

constexpr double kShortestSleep = 20e-6, kLongestSleep = 500e-6;  // between looks at messages
constexpr double kBlockedSleep = 50e-3;  // between looks at alarms and processes

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

int64_t MpiSite::copy_chunk(const void* source, void* destination, int64_t bytes) const {
  const int64_t times = repeats ? repeats() : 1;
  for (int64_t time = 0; time < times; ++time) copy_bytes(source, destination, bytes);
  return times * bytes;
}

void MpiSite::raise_alarm(const Call& call) const {
  const HostBoard::Rung rung = board.rung_by();
  Alarm alarm;
  alarm.ring(rung.rank, rung.reason, rung.place, rung.cause);
  alarm.raise_for(call, rank());
}

std::vector<int64_t> MpiSite::gone(const std::vector<int64_t>& late) const {
  std::vector<int64_t> result;
  for (const int64_t peer : late) {
    if (place(peer) < 0) continue;
    const auto process = static_cast<pid_t>(memory.process_ids()[place(peer)]);
    if (::kill(process, 0) != 0 && errno == ESRCH) result.push_back(peer);
  }
  return result;
}

std::vector<trace::Standing> MpiSite::standings(double deadline_seconds) const {
  std::vector<trace::Standing> ranks = standings_here(deadline_seconds);
  if (here.size() < places.size() && inquire && !rung()) inquire(ranks, deadline_seconds);
  return ranks;
}

std::vector<trace::Standing> MpiSite::standings_here(double deadline_seconds) const {
  WaitRows rows(places.size(), nullptr);
  for (size_t at = 0; at < here.size(); ++at) rows[here[at]] = &board.row(static_cast<int64_t>(at));
  for (const int64_t peer : gone(here)) rows[peer]->mark_gone();
  return evidence(rows, deadline_seconds);
}

bool HostWait::spin(const std::function<bool()>& ready, const std::function<bool()>& drive) const {
  const SteadyTime end = deadline_after(site.spin_seconds);
  for (int64_t turn = 0; std::chrono::steady_clock::now() < end; ++turn) {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      relax();
    }
    drive();
    std::this_thread::yield();
  }
  return ready();
}

void HostWait::until(const std::function<bool()>& ready, const std::function<bool()>& drive,
                     const std::function<std::vector<int64_t>()>& late) const {
  if (ready() || spin(ready, drive)) return;
  double sleep = kShortestSleep;
  SteadyTime next_look = deadline_after(kBlockedSleep);
  while (true) {
    site.row().beat(now_seconds());
    const bool driving = drive();
    const uint32_t seen = signal.enter();
    const bool is_ready = ready();
    if (!is_ready && !site.rung()) signal.sleep(seen, driving ? sleep : kBlockedSleep);
    signal.leave();
    if (is_ready || ready()) return;
    sleep = std::min(kLongestSleep, sleep * 1.25);
    if (site.rung()) site.raise_alarm(call);
    if (std::chrono::steady_clock::now() < next_look) continue;
    const SteadyTime now = site.clock.now();
    next_look = deadline_after(kBlockedSleep);
    const std::vector<int64_t> missing = site.gone(late());
    if (ready()) return;  // it came before its process ended
    if (!missing.empty()) give_up(missing, true);
    if (now >= deadline) give_up(late(), false);
  }
}

void HostWait::give_up(const std::vector<int64_t>& late, bool is_gone) const {
  const trace::Wait wait{site.rank(), communicator, -1, {}};
  const std::vector<trace::Standing> ranks = site.standings(call.deadline_seconds);
  if (site.rung()) site.raise_alarm(call);  // told meanwhile: all name the same
  raise(is_gone ? lost(call, site.rank(), late.front(), ranks, wait)
                : timeout(call, site.rank(), late, ranks, wait));
}

}  // namespace strait::comm
