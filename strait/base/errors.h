// The failures of Strait, as types. Each carries what an exit code and the JSON error object need.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace strait {

/// Where a failure happened. Every field is optional; what is set is shown to the user.
struct ErrorPlace {
  std::optional<std::string> file;
  std::optional<int64_t> line;
  std::optional<std::string> key;
  std::optional<int64_t> rank;
  std::optional<std::string> operation;
  std::optional<int64_t> step;
};

/// Exit codes of the program (docs/exit-codes.md).
enum class ExitCode : int {
  kDone = 0,
  kInternal = 1,
  kUser = 2,
  kNothingFits = 3,
  kPeerLost = 4,
  kNonFinite = 5,
  kInputOutput = 6,
};

/// Base of all failures that Strait throws. `kind()` is the word of the JSON error object.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string kind, const std::string& message, ErrorPlace place = {})
      : std::runtime_error(message),
        code_(code),
        kind_(std::move(kind)),
        place_(std::move(place)) {}
  ExitCode code() const { return code_; }
  const std::string& kind() const { return kind_; }
  const ErrorPlace& place() const { return place_; }
  ErrorPlace& place() { return place_; }

 private:
  ExitCode code_;
  std::string kind_;
  ErrorPlace place_;
};

/// A wrong command, run file, data file or checkpoint. The message names the nearest valid choice.
class UserError : public Error {
 public:
  explicit UserError(const std::string& message, ErrorPlace place = {})
      : Error(ExitCode::kUser, "user", message, std::move(place)) {}
};

/// Our bug.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message, ErrorPlace place = {})
      : Error(ExitCode::kInternal, "internal", message, std::move(place)) {}
};

/// No plan fits the given memory.
class NothingFits : public Error {
 public:
  explicit NothingFits(const std::string& message, ErrorPlace place = {})
      : Error(ExitCode::kNothingFits, "nothing-fits", message, std::move(place)) {}
};

/// Another rank ended or failed. `place().rank` is the lost rank.
class PeerLost : public Error {
 public:
  explicit PeerLost(const std::string& message, ErrorPlace place = {})
      : Error(ExitCode::kPeerLost, "peer-lost", message, std::move(place)) {}
};

/// A wait passed its deadline. `place().rank` is a rank that had not arrived.
class Timeout : public Error {
 public:
  explicit Timeout(const std::string& message, ErrorPlace place = {})
      : Error(ExitCode::kPeerLost, "timeout", message, std::move(place)) {}
};

/// The loss or a gradient is not finite and the policy is to stop.
class NonFinite : public Error {
 public:
  explicit NonFinite(const std::string& message, ErrorPlace place = {})
      : Error(ExitCode::kNonFinite, "non-finite", message, std::move(place)) {}
};

/// Reading or writing failed for a reason outside the program: disk full, no permission.
class InputOutputError : public Error {
 public:
  explicit InputOutputError(const std::string& message, ErrorPlace place = {})
      : Error(ExitCode::kInputOutput, "input-output", message, std::move(place)) {}
};

/// Throws InternalError with `message` unless `condition` holds.
inline void ensure(bool condition, const char* message) {
  if (!condition) throw InternalError(message);
}

/// The candidate with the smallest edit distance to `word`; "" when there are no candidates.
/// Cost: O(length of `word` * sum of lengths), less where lengths or beginnings tell candidates
/// apart.
template <class Strings>
std::string nearest_choice(const std::string& word, const Strings& candidates);

/// Levenshtein distance when it is below `limit`, else some number from `limit` on. Cost: O(|a|
/// |b|).
int64_t edit_distance(std::string_view a, std::string_view b,
                      int64_t limit = std::numeric_limits<int64_t>::max());

template <class Strings>
std::string nearest_choice(const std::string& word, const Strings& candidates) {
  const auto prefix = [&](std::string_view candidate) {
    return std::mismatch(word.begin(), word.end(), candidate.begin(), candidate.end()).first -
           word.begin();
  };
  const auto like = std::max_element(
      std::begin(candidates), std::end(candidates),
      [&](const auto& one, const auto& other) { return prefix(one) < prefix(other); });
  std::string best;
  if (like == std::end(candidates)) return best;
  int64_t limit = edit_distance(word, *like) + 1;  // most of the others are soon seen to be farther
  for (const auto& candidate : candidates) {
    const int64_t distance = edit_distance(word, candidate, limit);
    if (distance < limit) {
      best = candidate;
      limit = distance;
    }
  }
  return best;
}

}  // namespace strait
