// Which ranks compute the attention of which document of a batch, and by which engine. A plan is a
// pure function of the lengths and options, so that every rank makes the same one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strait/sequence/chunks.h"

namespace strait::sequence {

/// Ranks that nodes hold in runs: rank r belongs to node r / per_node.
struct RankGrid {
  int64_t nodes = 1, per_node = 1;
  int64_t ranks() const { return nodes * per_node; }
  int64_t node_of(int64_t rank) const { return rank / per_node; }
};

enum class Zone : uint8_t { kLocal, kIntra, kInter };
const char* zone_name(Zone zone);
enum class Engine : uint8_t {
  kRing,
  kGathered,  // keys gathered
  kHeads      // all-to-all from tokens to heads
};
const char* engine_name(Engine engine);

/// What moves, so that ranks have even counts of tokens beside attention (remap.h).
enum class Remapping : uint8_t {
  kNone,     // nothing: all is done where attention is
  kQkv,      // queries, keys and values, and results back: attention alone is uneven
  kResidual  // the residual stream, before the norm of attention and behind the sum that adds it
};
const char* remapping_name(Remapping remapping);

/// Ranks that share documents. Those of one group travel together, round by round.
struct Group {
  Zone zone = Zone::kLocal;
  Engine engine = Engine::kRing;
  std::vector<int32_t> ranks = {};  // in ring order; ascending
  std::vector<int32_t> documents = {};
};

/// A group's index is its ring id. Inter-node groups come first, then those inside nodes, then one
/// rank alone; inside a zone ids ascend with the first rank.
struct Plan {
  RankGrid grid;
  std::vector<int64_t> lengths;
  std::vector<Group> groups;
  /// Whether a rank's own documents stand between the rounds of its rings, where keys are under
  /// way, rather than behind all of them. The same bits: documents are independent.
  bool fills = false;
  Remapping remapping = Remapping::kNone;
  /// Over how many ranks of each node a ring's transfer to another node goes, and in how many
  /// pieces over each of them: routing.h. 1, 1: from rank to rank.
  int64_t proxies = 1, pieces = 1;
  /// In how many groups of key heads, each in an order of its own, keys go around a ring that
  /// crosses nodes, so that each leaves a node over another rank, or over other proxies: routing.h.
  int64_t rotations = 1;
  /// Neighbours that exchange heads, so that on a ring that crosses nodes each has those of the
  /// tokens of all, and keys go from such a run of ranks to the next: routing.h. 1: none do.
  int64_t head_ranks = 1;
  /// Ranks of x that split the rows between products: a rank's rows of linear modules are made a
  /// multiple of it, by rows of no document behind the last one.
  int64_t row_split = 1;
};

/// Sorts groups into the order of ids, makes one of those that have the same ranks, zone and
/// engine, so that their documents travel together, and sorts their documents. What makes plans
/// ends with it.
void finish_groups(Plan& plan);

/// A run of a document's positions.
struct Held {
  int32_t document = 0;
  Span span;
  bool operator==(const Held&) const = default;
};
/// What every rank holds for attention, in the order of its rows: by group, document, position.
using Layout = std::vector<std::vector<Held>>;
Layout attention_layout(const Plan& plan);
/// Of these ranks; the others' rows are left empty.
Layout attention_layout(const Plan& plan, std::span<const int32_t> ranks);

struct Load {
  int64_t tokens = 0, pairs = 0;
};
/// Exact, of every rank; where heads are exchanged each has an even part of its neighbours' pairs,
/// the first ones one more where they do not divide. Cost: O(documents x ranks of their groups).
std::vector<Load> loads(const Plan& plan);
/// Of the documents of one zone alone.
std::vector<Load> loads_of_zone(const Plan& plan, Zone zone);

/// Depends on everything in the plan. Equal on two ranks if and only if they agree (to 2^-64).
uint64_t plan_hash(const Plan& plan);

/// "12 local, 3 inside nodes, 1 between nodes; tokens 3,900 to 4,096, ..." for reports.
std::string summary(const Plan& plan);

/// UserError (key data.path) for a document of no tokens; names its index.
void check_lengths(std::span<const int64_t> lengths);

}  // namespace strait::sequence
