#include "strait/comm/mpi/inquiry.h"

#include <utility>

#include "strait/base/json.h"
#include "strait/trace/flight_file.h"

namespace strait::comm {

std::string standings_text(const std::vector<trace::Standing>& standings,
                           const std::vector<int64_t>& ranks, double now) {
  Json told = Json::array();
  for (const int64_t rank : ranks)
    told.push_back(
        Json::object({{"rank", rank}, {"standing", trace::standing_json(standings[rank])}}));
  return Json::object({{"now", now}, {"ranks", told}}).dump();
}

std::vector<int64_t> take_standings(const std::string& text, double now,
                                    std::vector<trace::Standing>& standings) {
  const Json told = Json::parse(text, "an answer of another host");
  const double ahead = now - told.at("now").as_number();
  const auto move = [&](double& time) {
    if (time > 0) time += ahead;
  };
  std::vector<int64_t> ranks;
  for (const Json& entry : told.at("ranks").as_array()) {
    const int64_t rank = entry.at("rank").as_integer();
    if (rank < 0 || rank >= static_cast<int64_t>(standings.size())) continue;
    trace::Standing standing = trace::parse_standing(entry.at("standing"));
    move(standing.since);
    move(standing.beat);
    for (trace::LaneStanding& lane : standing.lanes) move(lane.since);
    standings[rank] = std::move(standing);
    ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace strait::comm
