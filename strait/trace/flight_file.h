// Flight records as files: one JSON per rank in RUN_DIR/flight, and the verdict over all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/json.h"
#include "strait/trace/flight.h"
#include "strait/trace/verdict.h"

namespace strait::trace {

/// Why a record was written. `kind`: "request", "crash", or the kind of the error.
struct FlightReason {
  std::string kind, message;
  ErrorPlace place;  // rank, operation and step that the rank itself was told
};

/// What one rank leaves behind.
struct FlightFile {
  int64_t rank = 0, ranks = 1;
  std::string backend;
  FlightReason reason;
  double wall_seconds = 0;       // since 1970, when it was written
  double monotonic_seconds = 0;  // the same moment in now_seconds(), the clock of all other times
  Standing standing;
  std::vector<FlightEntry> entries;
};

Json standing_json(const Standing& standing);
/// UserError when it is none.
Standing parse_standing(const Json& json);
Json to_json(const FlightFile& file);
/// UserError naming `name` when it is no flight record.
FlightFile parse_flight(const Json& json, const std::string& name);

/// RUN_DIR/flight/rank-00003.json.
std::string flight_path(const std::string& run_dir, int64_t rank);
/// Writes the file atomically and makes the folder when needed. InputOutputError on failure.
void write_flight(const std::string& run_dir, const FlightFile& file);
/// Removes what an earlier run left. Never throws.
void clear_flight(const std::string& run_dir);
/// The records of a run by rank; empty entries for ranks that left none, no entries when there is
/// no record at all. UserError for a file that is no flight record.
std::vector<std::optional<FlightFile>> read_flight(const std::string& run_dir);

/// Who fell behind first, by judge() over the standings of the records; a rank without a record is
/// missing. Its place is the one that the ranks were told, when they recorded one for it. When no
/// rank waits on a communicator: whom the ranks recorded as the one they waited for; nothing when
/// nobody.
std::optional<Verdict> judge_flight(const std::vector<std::optional<FlightFile>>& files);
/// {fault, rank, operation, step, seconds, waiting[], records, ranks, text}, or null.
Json verdict_json(const std::optional<Verdict>& verdict,
                  const std::vector<std::optional<FlightFile>>& files);

}  // namespace strait::trace
