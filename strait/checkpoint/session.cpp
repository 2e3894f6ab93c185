#include "strait/checkpoint/session.h"

#include <fmt/format.h>

#include <algorithm>

#include "strait/base/errors.h"

namespace strait::checkpoint {
namespace {

/// A failure kept as values, so that every rank throws an object of its own.
struct Failure {
  ExitCode code = ExitCode::kInternal;
  std::string message;
  ErrorPlace place;

  explicit Failure(const std::exception& error) : message(error.what()) {
    if (const auto* known = dynamic_cast<const Error*>(&error)) {
      code = known->code();
      place = known->place();
    }
  }
  [[noreturn]] void raise() const {
    if (code == ExitCode::kInputOutput) throw InputOutputError(message, place);
    if (code == ExitCode::kUser) throw UserError(message, place);
    if (code == ExitCode::kPeerLost) throw Timeout(message, place);
    throw InternalError(message, place);
  }
};

ErrorPlace at_step(int64_t step, int64_t rank) {
  ErrorPlace place;
  place.step = step;
  place.rank = rank;
  place.operation = "save";
  return place;
}

}  // namespace

struct SaveSession::Save {
  Save(std::string temporary, int64_t ranks)
      : folder(std::move(temporary)), records(ranks), reported(ranks), waited(ranks) {}
  std::string folder;
  std::vector<RankRecord> records;
  std::optional<SaveDescription> description;
  std::vector<bool> reported, waited;  // by rank
  std::optional<Failure> failure;
  bool done = false;
  std::string path;  // when done without failure
};

SaveSession::SaveSession(std::string run_dir, int64_t ranks, double deadline_seconds)
    : run_dir_(std::move(run_dir)), ranks_(ranks), deadline_seconds_(deadline_seconds) {}
SaveSession::~SaveSession() = default;

std::shared_ptr<SaveSession::Save> SaveSession::find(int64_t step) {
  const auto found = saves_.find(step);
  if (found == saves_.end())
    throw InternalError(fmt::format("save session: no save of step {} is open", step));
  return found->second;
}

std::string SaveSession::open(int64_t step, int64_t rank) {
  std::unique_lock lock(mutex_);
  // A rank that already left a failed save of this step comes again before the others have left it.
  const auto left = [&] {
    const auto found = saves_.find(step);
    return found == saves_.end() || !found->second->waited[rank];
  };
  if (!changed_.wait_until(lock, deadline_after(deadline_seconds_), left))
    throw Timeout(
        fmt::format("save of step {}: the save before it was not left by all ranks within {} s",
                    step, deadline_seconds_),
        at_step(step, rank));
  auto& save = saves_[step];
  if (save == nullptr) {
    try {
      save = std::make_shared<Save>(begin_save(run_dir_, step), ranks_);
    } catch (const std::exception& error) {
      // Every rank shall learn the same: the save exists, failed.
      save = std::make_shared<Save>("", ranks_);
      save->failure.emplace(error);
    }
  }
  return save->folder;
}

void SaveSession::add(int64_t step, int64_t rank, RankRecord record,
                      std::optional<SaveDescription> description) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Save> save = find(step);
  save->records[rank] = std::move(record);
  if (description) save->description = std::move(description);
  report(lock, *save, rank);
}

void SaveSession::fail(int64_t step, int64_t rank, const std::exception& error) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Save> save = find(step);
  if (!save->failure) save->failure.emplace(error);
  report(lock, *save, rank);
}

void SaveSession::report(std::unique_lock<std::mutex>& lock, Save& save, int64_t rank) {
  ensure(!save.reported[rank], "save session: a rank reported twice");
  save.reported[rank] = true;
  if (!std::all_of(save.reported.begin(), save.reported.end(), [](bool r) { return r; })) return;
  // Nobody else touches the save until it is done; the disk is waited for without the lock.
  lock.unlock();
  try {
    if (!save.failure) {
      ensure(save.description.has_value(), "save session: no rank gave the description");
      Manifest manifest = std::move(save.description->manifest);
      for (const RankRecord& record : save.records) manifest.add(record);
      for (const auto& [name, contents] : save.description->texts)
        manifest.files.push_back(write_text(save.folder, name, contents));
      save.path = publish(save.folder, manifest);
    }
  } catch (const std::exception& error) {
    save.failure.emplace(error);
  }
  if (save.failure && !save.folder.empty()) {
    try {
      abandon(save.folder);
    } catch (const Error&) {  // the failure before it is the one to report; the next save cleans up
    }
  }
  lock.lock();
  save.records.clear();
  save.description.reset();
  save.done = true;
  changed_.notify_all();
}

std::string SaveSession::wait(int64_t step, int64_t rank) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Save> save = find(step);
  if (!changed_.wait_until(lock, deadline_after(deadline_seconds_), [&] { return save->done; })) {
    const auto missing = std::find(save->reported.begin(), save->reported.end(), false);
    const int64_t index = missing - save->reported.begin();
    throw Timeout(
        index < ranks_
            ? fmt::format("save of step {}: rank {} had not written its file after "
                          "{} s",
                          step, index, deadline_seconds_)
            : fmt::format("save of step {}: not published after {} s", step, deadline_seconds_),
        at_step(step, index < ranks_ ? index : rank));
  }
  save->waited[rank] = true;
  if (std::all_of(save->waited.begin(), save->waited.end(), [](bool w) { return w; })) {
    saves_.erase(step);
    changed_.notify_all();
  }
  if (save->failure) save->failure->raise();
  return save->path;
}

std::string SaveSession::save(int64_t step, int64_t rank, const std::vector<ShardView>& shards,
                              std::optional<SaveDescription> description) {
  const std::string folder = open(step, rank);
  try {
    // No folder: opening failed, which wait reports.
    add(step, rank, folder.empty() ? RankRecord{} : write_rank_file(folder, rank, shards),
        std::move(description));
  } catch (const std::exception& error) {
    fail(step, rank, error);
  }
  return wait(step, rank);
}

}  // namespace strait::checkpoint
