#include "strait/shape/run_overlaps.h"

#include <algorithm>

namespace strait {
namespace {

void join(std::vector<Overlap>& all, const Overlap& next) {
  if (!all.empty()) {
    Overlap& last = all.back();
    if (last.a + last.length == next.a && last.b + last.length == next.b) {
      last.length += next.length;
      return;
    }
  }
  all.push_back(next);
}

}  // namespace

std::vector<Stretch> stretches_of(const ElementRuns& runs) {
  std::vector<Stretch> stretches;
  for_each_run(runs, [&](int64_t at, int64_t packed, int64_t length) {
    stretches.push_back({at, at + length, packed});
  });
  std::sort(stretches.begin(), stretches.end(),
            [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
  return stretches;
}

std::vector<Overlap> overlaps(const std::vector<Stretch>& a, const std::vector<Stretch>& b) {
  std::vector<Overlap> all;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int64_t begin = std::max(a[i].begin, b[j].begin);
    const int64_t end = std::min(a[i].end, b[j].end);
    if (begin < end)
      join(all, {a[i].packed + begin - a[i].begin, b[j].packed + begin - b[j].begin, end - begin});
    (a[i].end < b[j].end ? i : j) += 1;
  }
  return all;
}

}  // namespace strait
