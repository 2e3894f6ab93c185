// Runs that a search tries one candidate of each, before it goes on with the fastest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "strait/config/run.h"
#include "strait/plan/search.h"

namespace strait::plan {

/// Whether plan.search names it.
inline bool searches(const Run& run, const char* what) {
  return std::ranges::find(run.plan.search, what) != run.plan.search.end();
}

/// Runs that can be, and why others cannot.
struct Trials {
  std::vector<Run> runs;
  std::vector<Rejection> refused;
  std::vector<Candidate> known = {};  // of further runs, composed already
};

/// Throws UserError for a run that cannot be.
using Require = std::function<void(const Run&)>;

/// Where a key that the plan has chosen was written.
inline constexpr const char* kPlanPlace = "plan";

/// Marks a key as written, so that a preset does not fill it again.
inline void write_key(Run& run, const std::string& key) { run.written[key] = {kPlanPlace, 0}; }

/// Chooses the value of a key.
template <class T>
void choose(Run& run, const char* key, T& field, T value) {
  field = std::move(value);
  write_key(run, key);
}

/// Adds it to what was left out of the same family for the same reason, of which the nearest miss
/// is what the user wants to know; counted as tried by refuse().
void reject(Rejection rejection, SearchResult& result);
void refuse(Rejection refused, SearchResult& result);

/// Keeps what fits; of what does not one of the family stands for `count`: it, and those that need
/// more and are not tried.
void keep(Candidate candidate, const std::string& family, int64_t count, SearchResult& result);

/// Adds what a part of the search has found.
void add(SearchResult part, SearchResult& result);

/// `count` ways of a family that the message of a run file of it refuses.
inline Rejection refusal(std::string family, std::string reason, int64_t count) {
  Rejection rejection;
  rejection.family = std::move(family);
  rejection.reason = std::move(reason);
  rejection.count = count;
  return rejection;
}

}  // namespace strait::plan
