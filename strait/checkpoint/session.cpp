#include "strait/checkpoint/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "strait/base/errors.h"
#include "strait/base/wait_clock.h"
#include "strait/checkpoint/meeting.h"

namespace strait::checkpoint {
namespace {

constexpr double kGraceSeconds = 2;
constexpr double kFirstPauseSeconds = 0.0002;
constexpr double kLongestPauseSeconds = 0.1;
constexpr size_t kLongestToken = 64;

/// Pauses between looks at the folder, each twice as long as the one before; ends at a deadline, or
/// `grace_seconds` after `cancelled` was first seen.
class Patience {
 public:
  Patience(double deadline_seconds, const std::atomic<bool>& cancelled, double grace_seconds)
      : limit_(clock_.deadline_after(deadline_seconds)),
        cancelled_(cancelled),
        grace_(grace_seconds) {}
  /// Sleeps; false, at once, when the time is over.
  bool pause() {
    if (cancelled_ && !shortened_) {
      shortened_ = true;
      limit_ = std::min(limit_, clock_.deadline_after(grace_));
    }
    const SteadyTime now = clock_.now();
    if (now >= limit_) return false;
    const std::chrono::duration<double> left = limit_ - now;
    std::this_thread::sleep_for(std::min(left, std::chrono::duration<double>(seconds_)));
    seconds_ = std::min(2 * seconds_, kLongestPauseSeconds);
    return true;
  }

 private:
  WaitClock clock_;
  SteadyTime limit_;
  const std::atomic<bool>& cancelled_;
  double grace_;
  bool shortened_ = false;
  double seconds_ = kFirstPauseSeconds;
};

std::vector<int64_t> ranks_that(const std::vector<Presence>& seen, Presence presence) {
  std::vector<int64_t> ranks;
  for (size_t rank = 0; rank < seen.size(); ++rank)
    if (seen[rank] == presence) ranks.push_back(static_cast<int64_t>(rank));
  return ranks;
}

[[noreturn]] void time_out(const std::vector<Presence>& seen, int64_t step, double seconds) {
  const std::vector<int64_t> missing = ranks_that(seen, Presence::kMissing);
  ErrorPlace place;
  place.step = step;
  place.rank = missing.empty() ? 0 : missing.front();
  place.operation = "save";
  if (missing.empty())
    throw Timeout(
        fmt::format("save of step {}: rank 0 had not published it after {} s", step, seconds),
        place);
  std::string names;
  for (const int64_t rank : missing) names += fmt::format("{}{}", names.empty() ? "" : ", ", rank);
  throw Timeout(fmt::format("save of step {}: rank{} {} had not written {} after {} s", step,
                            missing.size() > 1 ? "s" : "", names,
                            missing.size() > 1 ? "their files" : "its file", seconds),
                place);
}

bool is_token(const std::string& token) {
  return !token.empty() && token.size() <= kLongestToken &&
         std::all_of(token.begin(), token.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '-' || c == '_';
         });
}

}  // namespace

std::string make_session_token() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

SaveSession::SaveSession(SessionOptions options) : options_(std::move(options)) {
  ensure(is_token(options_.token), "save session: the token is not 1 to 64 letters or digits");
  ensure(0 <= options_.rank && options_.rank < options_.ranks, "save session: rank out of range");
  ensure(options_.retention.keep >= 0, "save session: keep is negative");
}

std::string SaveSession::save(int64_t step, const std::vector<ShardView>& shards,
                              std::optional<SaveDescription> description) {
  const std::string tag = fmt::format("{}-{}", options_.token, ++saves_);
  Meeting meeting(join_save(options_.run_dir, step, tag), options_.rank, options_.ranks);
  try {
    meeting.report(write_rank_file(meeting.folder(), options_.rank, shards));
    return options_.rank == 0 ? lead(meeting, step, std::move(description)) : follow(meeting, step);
  } catch (const std::exception& error) {
    meeting.fail(Failure(error, options_.rank, step));
    if (options_.rank == 0) disband(meeting);
    throw;
  }
}

std::string SaveSession::lead(Meeting& meeting, int64_t step,
                              std::optional<SaveDescription> description) {
  if (!description) throw InternalError("save session: rank 0 gave no description of the save");
  Patience patience(options_.deadline_seconds, cancelled_, kGraceSeconds);
  auto seen = meeting.look();
  while (seen && !ranks_that(*seen, Presence::kMissing).empty() && patience.pause())
    seen = meeting.look();
  if (!seen) throw InputOutputError(fmt::format("{} was removed", meeting.folder()));
  const std::vector<int64_t> failed = ranks_that(*seen, Presence::kFailed);
  if (!failed.empty()) meeting.failure(failed.front()).raise();
  if (!ranks_that(*seen, Presence::kMissing).empty())
    time_out(*seen, step, options_.deadline_seconds);
  Manifest& manifest = description->manifest;
  for (int64_t rank = 0; rank < options_.ranks; ++rank) manifest.add(meeting.record(rank));
  for (const auto& [name, contents] : description->texts)
    manifest.files.push_back(write_text(meeting.folder(), name, contents));
  meeting.remove_notes();
  const std::string path = publish(meeting.folder(), manifest);
  remove_superseded(path, options_.retention);
  return path;
}

std::string SaveSession::follow(Meeting& meeting, int64_t step) {
  Patience patience(options_.deadline_seconds, cancelled_, 0);
  std::vector<Presence> known(static_cast<size_t>(options_.ranks), Presence::kMissing);
  do {
    const auto seen = meeting.look();
    if (!seen) return published_path(meeting.folder());
    // Rank 0 removes the notes before it publishes.
    for (size_t rank = 0; rank < known.size(); ++rank)
      known[rank] = std::max(known[rank], (*seen)[rank]);
    if (const auto failed = ranks_that(*seen, Presence::kFailed); !failed.empty()) {
      const Failure failure = meeting.failure(failed.front());
      meeting.leave();  // from here on the folder may go
      failure.raise();
    }
  } while (patience.pause());
  if (cancelled_) {
    meeting.withdraw();
    throw InternalError(fmt::format("save of step {}: cancelled", step));
  }
  time_out(known, step, options_.deadline_seconds);
}

/// The others shall see that the save failed before the folder goes.
void SaveSession::disband(const Meeting& meeting) const {
  Patience patience(std::min(kGraceSeconds, options_.deadline_seconds), cancelled_, 0);
  const auto still_look = [&] {
    const auto seen = meeting.look();
    if (!seen) return false;
    return std::any_of(seen->begin() + 1, seen->end(), [](Presence presence) {
      return presence == Presence::kMissing || presence == Presence::kReported;
    });
  };
  try {
    while (still_look())
      if (!patience.pause()) return meeting.remove_rank_files();
    abandon(meeting.folder());
  } catch (const Error&) {  // the failure before it is the one to report; the next start cleans up
  }
}

}  // namespace strait::checkpoint
