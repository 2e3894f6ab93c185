#include "strait/sim/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "strait/base/errors.h"
#include "strait/codec/borders.h"
#include "strait/collective/of_op.h"
#include "strait/program/transfer.h"
#include "strait/sim/actor.h"
#include "strait/sim/link_counter.h"

namespace strait::sim {

using program::Op;
using program::Program;

namespace {

bool carries(const Program& program) {
  return std::any_of(
      program.arrays.begin(), program.arrays.end(),
      [](const program::ValueArray& array) { return array.lifetime == program::Lifetime::kCarry; });
}

/// The links that the programs name are links of the cluster.
void check_links(std::span<const Program> classes, const Cluster& cluster) {
  const auto is_level = [&](const program::Stream& stream) {
    return std::ranges::any_of(cluster.levels,
                               [&](const Level& level) { return level.name == stream.resource; });
  };
  const auto levels = static_cast<int64_t>(cluster.levels.size());
  for (const Program& program : classes) {
    for (const program::Group& group : program.groups)
      if (group.level < 0 || group.level >= levels)
        throw UserError(fmt::format("{}: group {} is at level {} of {}, which has {}", program.name,
                                    group.name, group.level, cluster.name, levels));
    for (size_t s = program::kCompute + 1; s < program.streams.size(); ++s)
      if (!is_level(program.streams[s]))
        throw UserError(fmt::format("{}: stream {}.{} is of no level of {}", program.name,
                                    program.streams[s].resource, program.streams[s].lane,
                                    cluster.name));
  }
}

/// Adds what `times` executions of a transfer put on the links.
void add_traffic(const Op& op, const std::vector<int64_t>& levels, int64_t times, int64_t ranks,
                 Result& result) {
  const char* name = collective::operation_name(collective::operation_of(op.kind));
  for (size_t level = 0; level < levels.size(); ++level) {
    if (levels[level] == 0) continue;
    const int64_t metadata = program::metadata_in(op, levels[level]);
    const int64_t payload = levels[level] - metadata;
    result.level_bytes[level] += times * payload;
    result.traffic.add({name, static_cast<int64_t>(level), codec::without_borders(op.codec),
                        times * payload, times * metadata, times * ranks});
  }
}

void count_traffic(const Scene& scene, Result& result) {
  LinkCounter counter(scene.cluster);
  result.level_bytes.assign(scene.cluster.levels.size(), 0);
  for (size_t c = 0; c < scene.classes.size(); ++c) {
    const Program& program = scene.classes[c];
    std::map<std::pair<const Op*, int64_t>, int64_t> executed;
    for (const program::Transfer& transfer : scene.exchange.transfers(static_cast<int64_t>(c)))
      ++executed[{transfer.op, transfer.peer}];
    const int64_t ranks = program::class_size(program);
    for (const auto& [key, times] : executed)
      add_traffic(*key.first, counter.bytes(program, *key.first, key.second), times, ranks, result);
  }
}

/// Mean over ranks of one figure; that figure itself where all representatives agree.
double mean(const std::vector<Representative>& all, double Representative::*figure) {
  const double first = all.front().*figure;
  double more = 0;
  int64_t ranks = 0;
  for (const Representative& one : all) {
    more += (one.*figure - first) * static_cast<double>(one.count);
    ranks += one.count;
  }
  return first + more / static_cast<double>(ranks);
}

void collect(const std::vector<Actor>& actors, Result& result) {
  double began = 0, ended = 0;
  for (const Actor& actor : actors) {
    began = std::max(began, actor.began_at());
    ended = std::max(ended, actor.ended_at());
  }
  result.seconds = ended - began;
  for (const Actor& actor : actors) {
    result.events += actor.events();
    result.representatives.push_back(actor.result());
    // What is left of the step: a rank may begin before the others, right after its last one.
    result.representatives.back().bubble_seconds +=
        result.seconds - (actor.ended_at() - actor.began_at());
  }
  result.compute_seconds = mean(result.representatives, &Representative::compute_seconds);
  result.exposed_seconds = mean(result.representatives, &Representative::exposed_seconds);
  result.bubble_seconds = mean(result.representatives, &Representative::bubble_seconds);
}

void replay(Scene& scene, std::vector<Actor>& actors) {
  const auto ended = [](const Actor& actor) { return actor.ended(); };
  for (;;) {
    for (Actor& actor : actors) actor.resume();
    if (std::all_of(actors.begin(), actors.end(), ended)) return;
    scene.lanes.advance();
  }
}

}  // namespace

Result simulate(std::span<const Program> classes, const Cluster& cluster,
                std::vector<trace::Recorder>* recorders) {
  check_links(classes, cluster);
  Scene scene(classes, cluster);
  const int executions = std::any_of(classes.begin(), classes.end(), carries) ? 2 : 1;
  const int64_t colours = scene.colouring.colours();
  scene.flights.assign(static_cast<size_t>(executions * scene.meetings.count()), -1);
  if (recorders != nullptr) {
    recorders->assign(static_cast<size_t>(colours), {});
    for (trace::Recorder& recorder : *recorders) recorder.record_all(true);
  }
  std::vector<Actor> actors;
  actors.reserve(static_cast<size_t>(colours));
  for (int64_t colour = 0; colour < colours; ++colour)
    actors.emplace_back(scene, colour, executions,
                        recorders == nullptr ? nullptr : &(*recorders)[colour]);
  replay(scene, actors);
  Result result;
  result.rank_classes = static_cast<int64_t>(classes.size());
  collect(actors, result);
  count_traffic(scene, result);
  if (recorders != nullptr)
    for (const Actor& actor : actors) actor.record_flights();
  return result;
}

}  // namespace strait::sim
