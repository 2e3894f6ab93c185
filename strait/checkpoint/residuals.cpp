// Residuals of error feedback, which belong to the ranks that send: reader.h.
#include <algorithm>
#include <map>

#include "strait/base/errors.h"
#include "strait/checkpoint/reader.h"
#include "strait/shape/run_overlaps.h"

namespace strait::checkpoint {
namespace {

/// Elements of one sender, as ranges that do not touch one another.
using Elements = std::vector<std::pair<int64_t, int64_t>>;

Elements elements_of(const ElementRuns& runs) {
  Elements elements;
  for (const Stretch& part : stretches_of(runs)) {
    if (!elements.empty() && elements.back().second == part.begin) {
      elements.back().second = part.end;
    } else {
      elements.emplace_back(part.begin, part.end);
    }
  }
  return elements;
}

/// All shares of a sender together: with x and y several ranks have one position.
std::map<int64_t, ElementRuns> by_sender(const std::vector<SenderShare>& shares) {
  std::map<int64_t, ElementRuns> senders;
  for (const SenderShare& share : shares) append(senders[share.sender], share.runs);
  std::erase_if(senders, [](const auto& entry) { return entry.second.empty(); });
  return senders;
}

bool same_senders(const std::map<int64_t, ElementRuns>& old_ones,
                  const std::map<int64_t, ElementRuns>& new_ones) {
  return std::equal(old_ones.begin(), old_ones.end(), new_ones.begin(), new_ones.end(),
                    [](const auto& a, const auto& b) {
                      return a.first == b.first && elements_of(a.second) == elements_of(b.second);
                    });
}

/// Adds what an old sender held of the wanted elements.
void add_stored(const CheckpointReader& reader, StateRange state, const ElementRuns& stored,
                const std::vector<Stretch>& wanted, std::vector<double>& sum) {
  for (const Overlap& part : overlaps(wanted, stretches_of(stored))) {
    std::vector<float> values(static_cast<size_t>(part.length));
    const ElementRuns runs = slice(stored, part.b, part.b + part.length);
    reader.load(with_runs(state, runs), std::as_writable_bytes(std::span(values)));
    for (size_t i = 0; i < values.size(); ++i) sum[static_cast<size_t>(part.a) + i] += values[i];
  }
}

/// How many of the new senders hold each of the wanted elements.
std::vector<int32_t> holders(const std::map<int64_t, ElementRuns>& senders,
                             const std::vector<Stretch>& wanted, size_t elements) {
  std::vector<int32_t> count(elements, 0);
  for (const auto& [sender, runs] : senders)
    for (const Overlap& part : overlaps(wanted, stretches_of(runs)))
      for (int64_t i = 0; i < part.length; ++i) ++count[static_cast<size_t>(part.a + i)];
  return count;
}

}  // namespace

void load_residual(const CheckpointReader& reader, const StateRange& state, const SenderShare& mine,
                   const std::vector<SenderShare>& all, std::span<float> destination) {
  ensure(static_cast<int64_t>(destination.size()) == num_elements(mine.runs),
         "load_residual: the destination has another length than the share");
  StateRange range = state;
  std::map<int64_t, ElementRuns> old_ones;
  for (const int64_t sender : reader.senders_of(state)) {
    range.sender = sender;
    old_ones[sender] = reader.sent_by(range);
  }
  const std::map<int64_t, ElementRuns> new_ones = by_sender(all);
  if (same_senders(old_ones, new_ones)) {
    range.sender = mine.sender;
    return reader.load(with_runs(range, mine.runs), std::as_writable_bytes(destination));
  }
  const std::vector<Stretch> wanted = stretches_of(mine.runs);
  std::vector<double> sum(destination.size(), 0.0);
  for (const auto& [sender, stored] : old_ones) {
    range.sender = sender;
    add_stored(reader, range, stored, wanted, sum);
  }
  const std::vector<int32_t> count = holders(new_ones, wanted, sum.size());
  for (size_t i = 0; i < sum.size(); ++i)
    destination[i] = static_cast<float>(sum[i] / std::max(count[i], 1));
}

}  // namespace strait::checkpoint
