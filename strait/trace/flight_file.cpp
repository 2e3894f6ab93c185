#include "strait/trace/flight_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <system_error>

#include "strait/base/file.h"

namespace strait::trace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "strait.flight/1";
constexpr const char* kStandings[] = {"missing", "absent", "busy", "waiting", "ended"};
constexpr const char* kTurns[] = {"idle", "held", "called", "joined"};

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json time_or_null(double seconds) { return seconds > 0 ? Json(seconds) : Json(); }
Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }
Json from_zero(int64_t value) { return value >= 0 ? Json(value) : Json(); }
/// Numbers of communicators have 64 bits without a sign: text keeps them whole in every reader.
std::string hexadecimal(uint64_t value) { return fmt::format("{:016x}", value); }

Json lane_json(const LaneStanding& lane) {
  return Json::object({{"communicator", hexadecimal(lane.communicator)},
                       {"members", lane.members},
                       {"issued", lane.issued},
                       {"number", lane.number},
                       {"turn", kTurns[static_cast<int>(lane.turn)]},
                       {"held_by", lane.held_by == 0 ? Json() : Json(hexadecimal(lane.held_by))},
                       {"peer", from_zero(lane.peer)},
                       {"kind", text_or_null(lane.kind)},
                       {"operation", text_or_null(lane.place.operation)},
                       {"step", from_zero(lane.place.step)},
                       {"since", time_or_null(lane.since)}});
}

Json entry_json(const FlightEntry& entry) {
  return Json::object({{"number", entry.number},
                       {"step", entry.step},
                       {"index", entry.index},
                       {"operation", entry.operation},
                       {"stream", entry.stream},
                       {"group", entry.group},
                       {"bytes", entry.bytes},
                       {"state", flight_state_name(entry.state)},
                       {"issued", time_or_null(entry.issued)},
                       {"started", time_or_null(entry.started)},
                       {"ended", time_or_null(entry.ended)}});
}

/// Reads the members of one JSON object; null and missing ones give the default.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}
  const Json* member(const char* key) const {
    const Json* found = json_.find(key);
    return found != nullptr && !found->is_null() ? found : nullptr;
  }
  int64_t integer(const char* key, int64_t otherwise) const {
    const Json* found = member(key);
    return found ? found->as_integer() : otherwise;
  }
  double number(const char* key) const {
    const Json* found = member(key);
    return found ? found->as_number() : 0.0;
  }
  std::string text(const char* key) const {
    const Json* found = member(key);
    return found ? found->as_string() : "";
  }
  uint64_t communicator(const char* key) const {
    const std::string digits = text(key);
    return digits.empty() ? 0 : std::strtoull(digits.c_str(), nullptr, 16);
  }
  std::vector<int64_t> integers(const char* key) const {
    std::vector<int64_t> values;
    for (const Json& value : json_.at(key).as_array()) values.push_back(value.as_integer());
    return values;
  }
  template <size_t n>
  int word(const char* key, const char* const (&words)[n]) const {
    const std::string given = json_.at(key).as_string();
    for (size_t i = 0; i < n; ++i)
      if (given == words[i]) return static_cast<int>(i);
    throw UserError(fmt::format("unknown {} \"{}\"; the nearest is \"{}\"", key, given,
                                nearest_choice(given, std::vector<std::string>(words, words + n))));
  }

 private:
  const Json& json_;
};

LaneStanding parse_lane(const Json& json) {
  const Reader from(json);
  LaneStanding lane;
  lane.communicator = from.communicator("communicator");
  lane.members = from.integers("members");
  lane.issued = from.integer("issued", 0);
  lane.number = from.integer("number", 0);
  lane.turn = static_cast<LaneStanding::Turn>(from.word("turn", kTurns));
  lane.held_by = from.communicator("held_by");
  lane.peer = from.integer("peer", -1);
  lane.kind = from.text("kind");
  lane.place = {from.text("operation"), from.integer("step", -1), -1};
  lane.since = from.number("since");
  return lane;
}

FlightEntry parse_entry(const Json& json) {
  static constexpr const char* kStates[] = {"issued", "running", "done", "failed"};
  const Reader from(json);
  FlightEntry entry;
  entry.number = from.integer("number", 0);
  entry.step = from.integer("step", 0);
  entry.index = from.integer("index", 0);
  entry.operation = from.text("operation");
  entry.stream = from.text("stream");
  entry.group = from.integers("group");
  entry.bytes = from.integer("bytes", 0);
  entry.state = static_cast<FlightState>(from.word("state", kStates));
  entry.issued = from.number("issued");
  entry.started = from.number("started");
  entry.ended = from.number("ended");
  return entry;
}

FlightFile parse_members(const Json& json) {
  const Reader from(json);
  if (from.text("format") != kFormat)
    throw UserError(fmt::format("format is \"{}\", not \"{}\"", from.text("format"), kFormat));
  FlightFile file;
  file.rank = json.at("rank").as_integer();
  file.ranks = json.at("ranks").as_integer();
  file.backend = from.text("backend");
  const Reader reason(json.at("reason"));
  file.reason = {reason.text("kind"), reason.text("message"), {}};
  if (const Json* rank = reason.member("rank")) file.reason.place.rank = rank->as_integer();
  if (const Json* operation = reason.member("operation"))
    file.reason.place.operation = operation->as_string();
  if (const Json* step = reason.member("step")) file.reason.place.step = step->as_integer();
  file.wall_seconds = from.number("wall_seconds");
  file.monotonic_seconds = from.number("monotonic_seconds");
  file.standing = parse_standing(json.at("standing"));
  for (const Json& entry : json.at("operations").as_array())
    file.entries.push_back(parse_entry(entry));
  return file;
}

}  // namespace

Json standing_json(const Standing& standing) {
  Json lanes = Json::array();
  for (const LaneStanding& lane : standing.lanes) lanes.push_back(lane_json(lane));
  return Json::object(
      {{"state", kStandings[static_cast<int>(standing.kind)]},
       {"operation", text_or_null(standing.place.operation)},
       {"step", from_zero(standing.place.step)},
       {"index", from_zero(standing.place.index)},
       {"since", time_or_null(standing.since)},
       {"communicator",
        standing.communicator == 0 ? Json() : Json(hexadecimal(standing.communicator))},
       {"peer", from_zero(standing.peer)},
       {"beat", time_or_null(standing.beat)},
       {"communicators", lanes}});
}

Standing parse_standing(const Json& json) {
  const Reader from(json);
  Standing standing;
  standing.kind = static_cast<Standing::Kind>(from.word("state", kStandings));
  standing.place = {from.text("operation"), from.integer("step", -1), from.integer("index", -1)};
  standing.since = from.number("since");
  standing.communicator = from.communicator("communicator");
  standing.peer = from.integer("peer", -1);
  standing.beat = from.number("beat");
  for (const Json& lane : json.at("communicators").as_array())
    standing.lanes.push_back(parse_lane(lane));
  return standing;
}

Json to_json(const FlightFile& file) {
  Json entries = Json::array();
  for (const FlightEntry& entry : file.entries) entries.push_back(entry_json(entry));
  return Json::object({{"format", kFormat},
                       {"rank", file.rank},
                       {"ranks", file.ranks},
                       {"backend", file.backend},
                       {"reason", Json::object({{"kind", file.reason.kind},
                                                {"message", file.reason.message},
                                                {"rank", or_null(file.reason.place.rank)},
                                                {"operation", or_null(file.reason.place.operation)},
                                                {"step", or_null(file.reason.place.step)}})},
                       {"wall_seconds", file.wall_seconds},
                       {"monotonic_seconds", file.monotonic_seconds},
                       {"standing", standing_json(file.standing)},
                       {"operations", entries}});
}

FlightFile parse_flight(const Json& json, const std::string& name) {
  try {
    return parse_members(json);
  } catch (const UserError& error) {
    ErrorPlace place;
    place.file = name;
    throw UserError(fmt::format("{} is no flight record: {}", name, error.what()), place);
  }
}

std::string flight_path(const std::string& run_dir, int64_t rank) {
  return fmt::format("{}/flight/rank-{:05}.json", run_dir, rank);
}

void write_flight(const std::string& run_dir, const FlightFile& file) {
  std::error_code error;
  fs::create_directories(run_dir + "/flight", error);
  const std::string path = flight_path(run_dir, file.rank);
  if (error) {
    ErrorPlace place;
    place.file = path;
    throw InputOutputError(fmt::format("cannot make {}/flight: {}", run_dir, error.message()),
                           place);
  }
  write_file_atomically(path, to_json(file).dump(1) + "\n");
}

void clear_flight(const std::string& run_dir) {
  std::error_code ignored;
  fs::remove_all(run_dir + "/flight", ignored);
}

std::vector<std::optional<FlightFile>> read_flight(const std::string& run_dir) {
  std::map<int64_t, FlightFile> found;
  int64_t ranks = 0;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_dir + "/flight", none)) {
    if (entry.path().extension() != ".json") continue;
    const std::string path = entry.path().string();
    FlightFile file = parse_flight(Json::parse(read_file(path), path), path);
    constexpr int64_t kMostRanks = 1 << 20;
    if (file.rank < 0 || file.rank >= file.ranks || file.ranks > kMostRanks)
      throw UserError(fmt::format("{} is of rank {} of {}", path, file.rank, file.ranks));
    ranks = std::max(ranks, file.ranks);
    found[file.rank] = std::move(file);
  }
  std::vector<std::optional<FlightFile>> files(static_cast<size_t>(ranks));
  for (auto& [rank, file] : found) files[rank] = std::move(file);
  return files;
}

namespace {

/// A rank may be late in several operations at once, and one without a record is known only by what
/// it is missed in: the place that the others were told while they ran stands.
void take_told_place(Verdict& verdict, const std::vector<std::optional<FlightFile>>& files) {
  for (const std::optional<FlightFile>& file : files) {
    if (!file || file->rank == verdict.rank || file->reason.place.rank != verdict.rank ||
        !file->reason.place.operation)
      continue;
    if (verdict.place.operation != *file->reason.place.operation) {
      const bool silent = verdict.fault == Fault::kBusy || verdict.fault == Fault::kSilent;
      verdict.place = {*file->reason.place.operation, file->reason.place.step.value_or(-1), -1};
      const OperationPlace& own =
          files[verdict.rank] ? files[verdict.rank]->standing.place : OperationPlace{};
      if (silent)
        verdict.fault = own.operation == verdict.place.operation ? Fault::kBusy : Fault::kSilent;
    }
    verdict.text = verdict_text(verdict);
    return;
  }
}

/// Of ranks that waited for another one outside of their communicators: in the files of a save.
std::optional<Verdict> told_by_ranks(const std::vector<std::optional<FlightFile>>& files) {
  Verdict verdict;
  for (const std::optional<FlightFile>& file : files) {
    if (!file || (file->reason.kind != "timeout" && file->reason.kind != "peer-lost")) continue;
    const int64_t named = file->reason.place.rank.value_or(-1);
    if (named < 0 || named >= static_cast<int64_t>(files.size()) || named == file->rank) continue;
    if (verdict.rank < 0) verdict.rank = named;  // all were told the same
    if (verdict.rank == named) verdict.waiting.push_back(file->rank);
  }
  if (verdict.rank < 0) return std::nullopt;
  verdict.fault = files[verdict.rank] ? Fault::kSilent : Fault::kMissing;
  take_told_place(verdict, files);
  return verdict;
}

}  // namespace

std::optional<Verdict> judge_flight(const std::vector<std::optional<FlightFile>>& files) {
  std::vector<Standing> ranks(files.size());
  double now = 0;
  for (size_t rank = 0; rank < files.size(); ++rank) {
    if (!files[rank]) continue;
    ranks[rank] = files[rank]->standing;
    const double written = files[rank]->monotonic_seconds;
    now = now == 0 ? written : std::min(now, written);
  }
  std::optional<Verdict> verdict = judge(ranks, all_waits(ranks), now);
  if (!verdict) return told_by_ranks(files);
  take_told_place(*verdict, files);
  return verdict;
}

Json verdict_json(const std::optional<Verdict>& verdict,
                  const std::vector<std::optional<FlightFile>>& files) {
  if (!verdict) return {};
  const auto records =
      std::count_if(files.begin(), files.end(), [](const auto& file) { return file.has_value(); });
  return Json::object({{"fault", fault_name(verdict->fault)},
                       {"rank", verdict->rank},
                       {"operation", text_or_null(verdict->place.operation)},
                       {"step", from_zero(verdict->place.step)},
                       {"seconds", time_or_null(verdict->seconds)},
                       {"waiting", verdict->waiting},
                       {"records", static_cast<int64_t>(records)},
                       {"ranks", static_cast<int64_t>(files.size())},
                       {"text", verdict->text}});
}

}  // namespace strait::trace
