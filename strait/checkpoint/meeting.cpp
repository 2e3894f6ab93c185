#include "strait/checkpoint/meeting.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "strait/base/file.h"
#include "strait/base/json.h"

namespace strait::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecord = ".record.json";
constexpr const char* kFailed = ".failed.json";
constexpr const char* kFailedCode = ".failed-";  // and the exit code
constexpr const char* kLeft = ".left";
constexpr const char* kRankFile = ".safetensors";
constexpr std::string_view kRankPrefix = "rank-";
constexpr std::array kFailureCodes = {ExitCode::kInternal, ExitCode::kUser, ExitCode::kPeerLost,
                                      ExitCode::kInputOutput};

/// A note appears whole. It need not outlive a crash, so it is not synced.
void write_note(const std::string& path, const std::string& contents) {
  const std::string temporary = path + ".writing";
  errno = 0;
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  bool good = file != nullptr;
  if (good) good = std::fwrite(contents.data(), 1, contents.size(), file) == contents.size();
  int reason = errno;
  if (file != nullptr && std::fclose(file) != 0) {
    good = false;
    reason = errno;
  }
  if (good && std::rename(temporary.c_str(), path.c_str()) != 0) {
    good = false;
    reason = errno;
  }
  if (good) return;
  std::remove(temporary.c_str());
  ErrorPlace place;
  place.file = path;
  throw InputOutputError(fmt::format("cannot write {}: {}", path, errno_text(reason)), place);
}

std::string folder_of(const std::string& path) { return fs::path(path).parent_path().string(); }

/// A disk that has no room for a note of its own.
bool is_full(const std::string& folder) {
  constexpr uintmax_t kNote = 64 << 10;
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  return !error && space.available < kNote;
}

void write_empty(const std::string& path) noexcept {
  if (std::FILE* file = std::fopen(path.c_str(), "wb")) std::fclose(file);
}

template <class T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json failure_json(const Failure& failure) {
  return Json::object({{"code", static_cast<int64_t>(failure.code)},
                       {"message", failure.message},
                       {"file", optional_json(failure.place.file)},
                       {"rank", optional_json(failure.place.rank)},
                       {"operation", optional_json(failure.place.operation)},
                       {"step", optional_json(failure.place.step)}});
}

ExitCode known_code(int64_t number) {
  for (const ExitCode code : kFailureCodes)
    if (static_cast<int64_t>(code) == number) return code;
  return ExitCode::kInternal;
}

Failure parse_failure(const Json& json) {
  Failure failure;
  failure.code = known_code(json.at("code").as_integer());
  failure.message = json.at("message").as_string();
  if (const Json& file = json.at("file"); !file.is_null()) failure.place.file = file.as_string();
  if (const Json& rank = json.at("rank"); !rank.is_null()) failure.place.rank = rank.as_integer();
  if (const Json& operation = json.at("operation"); !operation.is_null())
    failure.place.operation = operation.as_string();
  if (const Json& step = json.at("step"); !step.is_null()) failure.place.step = step.as_integer();
  return failure;
}

/// Rank of "rank-00002.ending" and its ending; rank -1 for other names.
std::pair<int64_t, std::string_view> split_note(std::string_view name) {
  if (!name.starts_with(kRankPrefix)) return {-1, {}};
  int64_t rank = -1;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kRankPrefix.size(), end, rank);
  if (parsed.ec != std::errc()) return {-1, {}};
  return {rank, std::string_view(parsed.ptr, static_cast<size_t>(end - parsed.ptr))};
}

std::optional<Presence> presence_of(std::string_view ending) {
  if (ending == kRecord) return Presence::kReported;
  if (ending == kLeft) return Presence::kLeft;
  if (ending == kFailed) return Presence::kFailed;
  const std::string_view code = kFailedCode;
  if (ending.size() == code.size() + 1 && ending.starts_with(code)) return Presence::kFailed;
  return std::nullopt;
}

/// Names in a folder; nothing when it is gone.
std::optional<std::vector<std::string>> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  if (!error) return names;
  // A handle of a folder that another computer renamed or removed is stale.
  if (error == std::errc::no_such_file_or_directory || error.value() == ESTALE) return std::nullopt;
  ErrorPlace place;
  place.file = folder;
  throw InputOutputError(fmt::format("cannot list {}: {}", folder, error.message()), place);
}

}  // namespace

Failure::Failure(const std::exception& error, int64_t rank, int64_t step) : message(error.what()) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    code = known->code();
    place = known->place();
  }
  if (!place.rank) place.rank = rank;
  if (!place.step) place.step = step;
  if (!place.operation) place.operation = "save";
}

void Failure::raise() const {
  if (code == ExitCode::kInputOutput) throw InputOutputError(message, place);
  if (code == ExitCode::kUser) throw UserError(message, place);
  if (code == ExitCode::kPeerLost) throw Timeout(message, place);
  throw InternalError(message, place);
}

std::string Meeting::note(int64_t rank, const char* ending) const {
  return fmt::format("{}/{}{:05d}{}", folder_, kRankPrefix, rank, ending);
}

void Meeting::report(const RankRecord& record) {
  write_note(note(rank_, kRecord), rank_record_json(record).dump());
}

void Meeting::fail(const Failure& failure) noexcept {
  if (left_) return;
  try {
    write_note(note(rank_, kFailed), failure_json(failure).dump());
  } catch (const std::exception&) {
    // An empty file takes no room: its name says the little that is left to say.
    write_empty(
        note(rank_, fmt::format("{}{}", kFailedCode, static_cast<int>(failure.code)).c_str()));
  }
}

void Meeting::leave() noexcept {
  left_ = true;
  // Renaming works where the disk is full; rank 0 may have removed the record.
  std::error_code error;
  fs::rename(note(rank_, kRecord), note(rank_, kLeft), error);
  if (error) write_empty(note(rank_, kLeft));
}

std::optional<std::vector<Presence>> Meeting::look() const {
  const auto names = names_in(folder_);
  if (!names) return std::nullopt;
  std::vector<Presence> ranks(static_cast<size_t>(ranks_), Presence::kMissing);
  for (const std::string& name : *names) {
    const auto [rank, ending] = split_note(name);
    const std::optional<Presence> presence = presence_of(ending);
    if (rank < 0 || rank >= ranks_ || !presence) continue;
    // A rank that reported may have failed since.
    ranks[static_cast<size_t>(rank)] = std::max(ranks[static_cast<size_t>(rank)], *presence);
  }
  return ranks;
}

RankRecord Meeting::record(int64_t rank) const {
  const std::string path = note(rank, kRecord);
  try {
    return parse_rank_record(Json::parse(read_file(path), path));
  } catch (const UserError& error) {  // the note is ours, not a user's
    throw InternalError(fmt::format("save: {}", error.what()), error.place());
  }
}

Failure Meeting::failure(int64_t rank) const {
  const std::string path = note(rank, kFailed);
  try {
    return parse_failure(Json::parse(read_file(path), path));
  } catch (const Error&) {  // only its code was left to say
  }
  Failure failure;
  for (const ExitCode code : kFailureCodes)
    if (fs::exists(note(rank, fmt::format("{}{}", kFailedCode, static_cast<int>(code)).c_str())))
      failure.code = code;
  failure.message = fmt::format(
      "save: rank {} could not write its part, nor its reason{}", rank,
      is_full(folder_of(path)) ? ": No space left on the disk" : "; its own message says more");
  failure.place.rank = rank;
  failure.place.operation = "save";
  failure.place.file = folder_;
  return failure;
}

void Meeting::remove_notes() const {
  for (const std::string& name : names_in(folder_).value_or(std::vector<std::string>())) {
    const auto [rank, ending] = split_note(name);
    if (rank < 0 || ending == kRankFile) continue;
    std::error_code error;
    fs::remove(folder_ + "/" + name, error);
    if (error)
      throw InputOutputError(
          fmt::format("cannot remove {}/{}: {}", folder_, name, error.message()));
  }
}

void Meeting::remove_rank_files() const noexcept {
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    std::error_code ignored;
    fs::remove(note(rank, kRankFile), ignored);
  }
}

}  // namespace strait::checkpoint
