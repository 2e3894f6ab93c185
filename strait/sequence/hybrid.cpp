#include "strait/sequence/hybrid.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "strait/sequence/buckets.h"

namespace strait::sequence {
namespace {

class Placing {
 public:
  Placing(const Batch& batch, int64_t capacity, Plan& plan)
      : plan_(plan), ranks_(plan.grid.ranks(), capacity), alone_(ranks_.all().size()) {
    for (const int64_t length : batch.lengths) mean_squares_ += square(length);
    mean_squares_ /= static_cast<double>(plan.grid.ranks());
  }

  void place(int32_t document) {
    const int64_t length = plan_.lengths[static_cast<size_t>(document)];
    const int64_t wanted = wanted_ring(length);
    for (int64_t ring = wanted; ring <= plan_.grid.ranks(); ring *= 2)
      if (place_on(document, ring, most_of_ring(length, ring))) return;
    for (int64_t ring = wanted / 2; ring > 0; ring /= 2)
      if (place_on(document, ring, most_of_ring(length, ring))) return;
    place_on(document, wanted, kWithoutRoom);
  }

  void finish() { std::ranges::move(alone_, std::back_inserter(plan_.groups)); }

 private:
  static constexpr int64_t kWithoutRoom = -(int64_t{1} << 60);

  int64_t wanted_ring(int64_t length) const {
    int64_t ring = 1;
    while (2 * ring <= plan_.grid.ranks() &&
           square(length) / static_cast<double>(ring) > mean_squares_)
      ring *= 2;
    return ring;
  }

  bool place_on(int32_t document, int64_t ring, int64_t room) {
    const int32_t first = ring == 1 ? ranks_.lightest_with(room) : lightest_run(ring, room);
    if (first < 0) return false;
    const int64_t length = plan_.lengths[static_cast<size_t>(document)];
    Group group{.documents = {document}};
    for (int64_t at = 0; at < ring; ++at) {
      group.ranks.push_back(first + static_cast<int32_t>(at));
      ranks_.take(group.ranks.back(), square(length) / static_cast<double>(ring),
                  most_of_ring(length, ring));
    }
    group.zone = zone_of(plan_.grid, group.ranks);
    Group& own = alone_[static_cast<size_t>(first)];
    if (ring > 1) {
      plan_.groups.push_back(std::move(group));
    } else if (own.documents.empty()) {
      own = std::move(group);
    } else {
      own.documents.push_back(document);
    }
    return true;
  }

  int32_t lightest_run(int64_t ring, int64_t room) const {
    int32_t best = -1;
    double least = 0;
    for (int64_t first = 0; first + ring <= plan_.grid.ranks(); first += ring) {
      const auto begin = ranks_.all().begin() + first, end = begin + ring;
      if (std::any_of(begin, end, [&](const Bucket& rank) { return rank.room < room; })) continue;
      const double most = std::ranges::max_element(begin, end, {}, &Bucket::load)->load;
      if (best < 0 || most < least) best = static_cast<int32_t>(first), least = most;
    }
    return best;
  }

  Plan& plan_;
  Buckets ranks_;
  std::vector<Group> alone_;
  double mean_squares_ = 0;
};

}  // namespace

void place_hybrid(const Batch& batch, int64_t capacity, Plan& plan) {
  Placing placing(batch, capacity, plan);
  for (const int32_t document : batch.longest_first) placing.place(document);
  placing.finish();
}

}  // namespace strait::sequence
