#include "strait/sequence/rank_layout.h"

#include <algorithm>
#include <utility>

#include "strait/base/errors.h"
#include "strait/sequence/remap.h"
#include "strait/sequence/routing.h"

namespace strait::sequence {

int64_t RankGroup::rows_of(int64_t of_member) const {
  int64_t sum = 0;
  for (size_t document = 0; document < lengths.size(); ++document)
    sum += cut(document).tokens(of_member);
  return sum;
}

int64_t RankGroup::rows_of_neighbour(int64_t of_neighbour) const {
  int64_t sum = 0;
  for (size_t document = 0; document < lengths.size(); ++document)
    sum += rank_cut(document).tokens(member * head_ranks() + of_neighbour);
  return sum;
}

int64_t RankGroup::pairs(int64_t round) const {
  int64_t sum = 0;
  for (size_t document = 0; document < lengths.size(); ++document)
    for (const Block& block : round_blocks(cut(document), member, distance(round)))
      sum += block.pairs();
  return sum;
}

EngineStep RankLayout::first_of_rows(const std::vector<EngineStep>& steps) const {
  return *std::ranges::find_if(steps, [this](const EngineStep& step) {
    return groups[static_cast<size_t>(step.group)].head_ranks() == 1;
  });
}

EngineStep RankLayout::last_of_rows(const std::vector<EngineStep>& steps) const {
  return *std::find_if(steps.rbegin(), steps.rend(), [this](const EngineStep& step) {
    return groups[static_cast<size_t>(step.group)].head_ranks() == 1;
  });
}

namespace {

/// Rounds of rings that need keys of others.
int64_t rounds_that_wait(const std::vector<RankGroup>& groups) {
  int64_t rounds = 0;
  for (const RankGroup& group : groups) rounds += group.part == 0 ? group.size - 1 : 0;
  return rounds;
}

/// Documents in `runs` runs of about the same pairs; some may have none.
std::vector<std::vector<int32_t>> even_runs(const Plan& plan, const std::vector<int32_t>& documents,
                                            int64_t runs) {
  const auto pairs = [&](int32_t document) {
    return static_cast<double>(causal_pairs(plan.lengths[static_cast<size_t>(document)]));
  };
  double all = 0, before = 0;
  for (const int32_t document : documents) all += pairs(document);
  std::vector<std::vector<int32_t>> made(static_cast<size_t>(runs));
  for (const int32_t document : documents) {
    const double middle = before + pairs(document) / 2;
    const auto run = static_cast<int64_t>(middle / all * static_cast<double>(runs));
    made[static_cast<size_t>(std::min(run, runs - 1))].push_back(document);
    before += pairs(document);
  }
  return made;
}

void add_rows(const Held& held, RankLayout& layout) {
  layout.held.push_back(held);
  for (int64_t position = held.span.begin; position < held.span.end; ++position)
    layout.positions.push_back(static_cast<int32_t>(position));
}

/// Behind the rows of attention those that other ranks attend.
void remap_rows(const Plan& plan, int64_t rank, RankLayout& layout) {
  const Remap remap = remap_of(plan);
  layout.linear_rows = remap.targets[static_cast<size_t>(rank)];
  std::vector<int32_t> read = {static_cast<int32_t>(rank)};
  for (const Move& move : remap.moves) {
    if (move.from == rank)
      layout.moved.push_back({move.to, true, move.from_row, move.from_row + move.tokens});
    if (move.to != rank) continue;
    layout.moved.push_back({move.from, false, move.to_row, move.to_row + move.tokens});
    read.push_back(move.from);
  }
  layout.held = linear_rows(attention_layout(plan, read), remap, rank);
  int64_t row = 0;
  for (const Held& held : layout.held)
    for (int64_t position = held.span.begin; position < held.span.end; ++position, ++row)
      if (row >= layout.attention_rows) layout.positions.push_back(static_cast<int32_t>(position));
}

/// Who stands where, once the order of members is known.
void place_in_ring(const Group& group, RankGroup& part) {
  part.ranks.clear();
  for (const int32_t member : part.members)
    part.ranks.push_back(
        group.ranks[static_cast<size_t>(member * part.head_ranks() + part.neighbour)]);
  part.position =
      std::ranges::find(part.members, static_cast<int32_t>(part.member)) - part.members.begin();
  part.before = part.ranks[static_cast<size_t>((part.position + part.size - 1) % part.size)];
  part.next = part.ranks[static_cast<size_t>((part.position + 1) % part.size)];
}

/// `place`: among the ranks of the group.
RankGroup part_of(const Plan& plan, const Group& group, int64_t place, RankLayout& layout) {
  RankGroup part;
  const int64_t neighbours = head_ranks_of(plan, group);
  part.size = std::ssize(group.ranks) / neighbours;
  part.member = place / neighbours;
  part.neighbour = place % neighbours;
  if (neighbours > 1) {
    const auto first = group.ranks.begin() + part.member * neighbours;
    part.neighbours.assign(first, first + neighbours);
  }
  for (int32_t other = 0; other < part.size; ++other) part.members.push_back(other);
  place_in_ring(group, part);
  if (is_routed(plan, group)) {
    part.proxies = plan.proxies;
    part.pieces = plan.pieces;
  }
  part.first_row = std::ssize(layout.positions);
  for (const int32_t document : group.documents) {
    part.lengths.push_back(plan.lengths[static_cast<size_t>(document)]);
    for (const Span& span : part.rank_cut(part.lengths.size() - 1).spans(place))
      add_rows({document, span}, layout);
  }
  part.rows = std::ssize(layout.positions) - part.first_row;
  return part;
}

/// Appends one part for each order in which keys go around.
void add_parts(const Plan& plan, const Group& group, int64_t place, RankLayout& layout) {
  RankGroup part = part_of(plan, group, place, layout);
  part.parts = is_rotated(plan, group) ? plan.rotations : 1;
  for (; part.part < part.parts; ++part.part) {
    if (part.parts > 1) {
      part.members = rotated_members(part.size, plan.grid.per_node, part.part, part.parts);
      place_in_ring(group, part);
    }
    layout.groups.push_back(part);
  }
}

/// Where they fill, run j of n stands before wait j (w + 1) / n of w, of which the end is the last.
std::vector<EngineStep> order_of(const std::vector<RankGroup>& groups, bool fills) {
  std::vector<EngineStep> order;
  const auto local = std::ranges::find(groups, 1, &RankGroup::size) - groups.begin();
  const int64_t waits = rounds_that_wait(groups), runs = std::ssize(groups) - local;
  int64_t run = 0, wait = 0;
  const auto fill = [&] {
    for (; run < runs && run * (waits + 1) / runs <= wait; ++run) order.push_back({local + run, 0});
    ++wait;
  };
  for (int64_t group = 0; group < local;) {
    const RankGroup& first = groups[static_cast<size_t>(group)];
    for (int64_t round = 0; round < first.size; ++round) {
      if (fills && round > 0) fill();
      for (int64_t part = 0; part < first.parts; ++part) order.push_back({group + part, round});
    }
    group += first.parts;
  }
  wait = waits;
  fill();
  return order;
}

}  // namespace

std::vector<EngineStep> backward_order_of(const RankLayout& layout) {
  std::vector<EngineStep> steps, last;
  for (EngineStep step : layout.order) {
    if (step.round == 0 && layout.groups[static_cast<size_t>(step.group)].size > 1) {
      last.push_back({step.group, 0, OwnPairs::kWithin});
      step.pairs = OwnPairs::kAcross;
    }
    steps.push_back(step);
  }
  steps.insert(steps.end(), last.begin(), last.end());
  return steps;
}

RankLayout rank_layout(const Plan& plan, int64_t rank) {
  RankLayout layout;
  for (const Group& group : plan.groups) {
    const auto found = std::ranges::find(group.ranks, static_cast<int32_t>(rank));
    if (found == group.ranks.end()) continue;
    ensure(group.ranks.size() == 1 || group.engine == Engine::kRing,
           "rank_layout: a group that is no ring");
    if (group.ranks.size() > 1 || !plan.fills) {
      add_parts(plan, group, found - group.ranks.begin(), layout);
      continue;
    }
    for (std::vector<int32_t>& run :
         even_runs(plan, group.documents, rounds_that_wait(layout.groups) + 1)) {
      if (run.empty()) continue;
      Group documents = group;
      documents.documents = std::move(run);
      layout.groups.push_back(part_of(plan, documents, 0, layout));
    }
  }
  const auto exchanges = [](const RankGroup& group) { return group.head_ranks() > 1; };
  if (std::ranges::all_of(layout.groups, exchanges))
    layout.groups.push_back({.before = static_cast<int32_t>(rank),
                             .next = static_cast<int32_t>(rank),
                             .first_row = std::ssize(layout.positions),
                             .members = {0}});
  layout.order = order_of(layout.groups, plan.fills);
  layout.backward_order = backward_order_of(layout);
  layout.attention_rows = layout.linear_rows = std::ssize(layout.positions);
  layout.remapping = plan.remapping;
  if (plan.remapping != Remapping::kNone) remap_rows(plan, rank, layout);
  const int64_t split = plan.row_split, rows = std::max<int64_t>(1, layout.linear_rows);
  layout.rows = (rows + split - 1) / split * split;
  return layout;
}

}  // namespace strait::sequence
