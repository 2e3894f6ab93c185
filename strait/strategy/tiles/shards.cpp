#include "strait/strategy/tiles/shards.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strait/draft/shard_kernels.h"
#include "strait/strategy/tiles/parts.h"
#include "strait/strategy/tiles/shard_chunks.h"

namespace strait::strategy {
namespace {

using draft::Purpose;
using draft::Visit;
using program::Access;
using program::Op;
using program::Operand;
using program::OpKind;
using Ops = std::vector<Op>;

/// A product, and what of it ranks of x exchange by rows. `with`: the segments that are done with
/// the product, row by row.
struct Pair {
  Segment segment;
  Phase phase;
  BlockValue value;
  bool gathers;
  Segment with;
};
constexpr Pair kPairs[] = {
    {Segment::kOutput, Phase::kForward, BlockValue::kOutputSum, false, Segment::kOutput},
    {Segment::kDown, Phase::kForward, BlockValue::kDownSum, false, Segment::kDown},
    {Segment::kUp, Phase::kBackwardInput, BlockValue::kNormedMlpGradient, false, Segment::kUp},
    {Segment::kQkv, Phase::kBackwardInput, BlockValue::kNormedAttentionGradient, false,
     Segment::kQkv},
    {Segment::kQkv, Phase::kForward, BlockValue::kNormedAttention, true, Segment::kQkvAdd},
    {Segment::kUp, Phase::kForward, BlockValue::kNormedMlp, true, Segment::kUpAdd},
    {Segment::kDown, Phase::kBackwardInput, BlockValue::kDownSumGradient, true, Segment::kUpAdd},
    {Segment::kOutput, Phase::kBackwardInput, BlockValue::kOutputSumGradient, true,
     Segment::kOutput}};

/// Where a visit has a pair.
struct Site {
  size_t product = 0, exchange = 0;
  Operand all, own;  // all rows of the value, and the rank's
};

/// One that is taken apart: shards of `rows` rows in chunks of `chunk`.
struct Tile {
  const Pair* pair = nullptr;
  int64_t ranks = 1, rows = 0, chunk = 0;
  int array = -1;     // joined: the value's rows on this rank
  int received = -1;  // joined: what has come of a scatter
  int64_t chunks() const { return (rows + chunk - 1) / chunk; }
  /// Chunk `number` of the shard of the rank so many positions behind.
  int64_t index(int64_t shard, int64_t number) const { return shard % ranks * chunks() + number; }
  program::IntegerRange rows_of(int64_t number) const {
    return {number * chunk, std::min((number + 1) * chunk, rows)};
  }
};

bool is_transfer_of(const Op& op, const Operand& value) {
  return program::is_communication(op.kind) && names(op, value);
}

/// Whether a range begins with the pair's product, or ends with it.
bool stands_at(const Pair& pair, const Op& op) {
  if (!draft::works_on_segments(op) || draft::works_on_rows(op) ||
      draft::phase_of(op) != pair.phase)
    return false;
  const SegmentRange range = draft::range_of(op);
  const bool first = pair.gathers == (pair.phase == Phase::kForward);
  return static_cast<int>(pair.segment) == (first ? range.begin : range.end - 1);
}

std::optional<Site> gather_site(const Pair& pair, const Ops& ops) {
  for (size_t product = 0; product < ops.size(); ++product) {
    if (!stands_at(pair, ops[product])) continue;
    const Operand* all = program::operand_in(ops[product].reads, draft::block_slot(pair.value));
    if (all == nullptr) return std::nullopt;
    for (size_t at = product; at-- > 0;) {
      if (!names(ops[at], *all)) continue;
      if (ops[at].kind != OpKind::kAllGather) return std::nullopt;
      return Site{product, at, *all, ops[at].reads.front()};
    }
  }
  return std::nullopt;
}

std::optional<Site> scatter_site(const Pair& pair, const Ops& ops) {
  for (size_t product = 0; product < ops.size(); ++product) {
    if (!stands_at(pair, ops[product])) continue;
    const Operand* all = program::operand_in(ops[product].writes, draft::block_slot(pair.value));
    if (all == nullptr || all->access != Access::kWrite) return std::nullopt;
    for (size_t at = product + 1; at < ops.size(); ++at) {
      if (ops[at].kind == OpKind::kAllReduce && !names(ops[at], *all)) continue;
      if (ops[at].kind != OpKind::kReduceScatter || !names(ops[at], *all)) return std::nullopt;
      return Site{product, at, *all, ops[at].writes.front()};
    }
  }
  return std::nullopt;
}

bool frees(const Visit& visit, const Operand& value) {
  return std::ranges::any_of(visit.frees,
                             [&](const Operand& freed) { return same_value(freed, value); });
}

/// Where a pair can be taken apart: nobody else exchanges its value, which ends with the visit.
std::optional<Site> find_site(const Pair& pair, const Visit& visit) {
  const std::optional<Site> site =
      pair.gathers ? gather_site(pair, visit.ops) : scatter_site(pair, visit.ops);
  if (!site || !frees(visit, site->all)) return std::nullopt;
  if (pair.gathers && !frees(visit, site->own)) return std::nullopt;
  for (size_t at = 0; at < visit.ops.size(); ++at) {
    if (at == site->exchange) continue;
    const Op& op = visit.ops[at];
    if (is_transfer_of(op, site->all) || (pair.gathers && is_transfer_of(op, site->own)))
      return std::nullopt;
  }
  return site;
}

/// Values of an array from `first` on, in the place of one operand.
struct Stand {
  Operand whole;
  int array;
  int64_t first, end;
};

void stand_in(std::vector<Operand>& operands, const Stand& stand) {
  const std::vector<Operand> before = std::exchange(operands, {});
  for (const Operand& operand : before) {
    if (!same_value(operand, stand.whole)) {
      operands.push_back(operand);
      continue;
    }
    for (int64_t index = stand.first; index < stand.end; ++index)
      operands.push_back({stand.array, {index}, operand.access, operand.slot});
  }
}

void stand_in(Op& op, const Stand& stand) {
  for (auto* operands : {&op.reads, &op.writes, &op.waits}) stand_in(*operands, stand);
}

Op free_of(int array, int64_t first, int64_t end) {
  Op op = draft::free_op({array, {first}});
  for (int64_t index = first + 1; index < end; ++index)
    op.writes.push_back(draft::free_op({array, {index}}).writes.front());
  return op;
}

/// Slots of what the second range reads and the first one writes, and the op has no place for.
std::vector<int> links_between(const Op& op, SegmentRange first, SegmentRange second) {
  const Phase phase = draft::phase_of(op);
  draft::Places places = draft::places_in({&op, 1});
  places.splits_rows = true;
  std::vector<int> slots;
  for (const draft::OperandUse& use : draft::segment_operands(second, phase, places)) {
    if (!draft::is_inside_block(use.slot) || use.access == Access::kWrite ||
        draft::find_operand({&op, 1}, use.slot) != nullptr)
      continue;
    for (const draft::OperandUse& made : draft::segment_operands(first, phase, places))
      if (made.slot == use.slot && made.access != Access::kRead) slots.push_back(use.slot);
  }
  return slots;
}

/// Takes the pairs of visits apart.
class Tiler {
 public:
  Tiler(const ModelShape& shape, Dtype dtype, std::vector<Tile> tiles, std::map<int, int> links)
      : shape_(shape), dtype_(dtype), tiles_(std::move(tiles)), links_(std::move(links)) {}

  void apply(Visit& visit) const {
    for (const Tile& tile : tiles_)
      if (const std::optional<Site> site = find_site(*tile.pair, visit))
        tile.pair->gathers ? gather(tile, *site, visit) : scatter(tile, *site, visit);
  }

 private:
  /// Chunk by chunk, of all shards but the rank's own.
  template <class Act>
  static void for_each_chunk(const Tile& tile, const Act& act) {
    for (int64_t shard = 1; shard < tile.ranks; ++shard)
      for (int64_t number = 0; number < tile.chunks(); ++number) act(shard, number);
  }

  static Op shift(const Op& exchange, int64_t distance, const Operand& from, const Operand& to) {
    Op op = exchange;
    op.kind = OpKind::kShift;
    op.partition = {};
    op.peer = {distance - 1};
    op.reads = {program::as(from, Access::kRead)};
    op.writes = {program::as(to, Access::kWrite)};
    return op;
  }

  void gather(const Tile& tile, const Site& site, Visit& visit) const {
    const Ops before = std::exchange(visit.ops, {});
    const int64_t all = tile.ranks * tile.chunks();
    const Stand own{site.own, tile.array, 0, tile.chunks()}, whole{site.all, tile.array, 0, all};
    for (size_t at = 0; at < before.size(); ++at) {
      if (at == site.exchange) {
        for_each_chunk(tile, [&](int64_t shard, int64_t number) {
          visit.ops.push_back(shift(before[at], tile.ranks - shard, {tile.array, {number}},
                                    {tile.array, {tile.index(shard, number)}}));
        });
      } else if (at == site.product) {
        begin_with_product(tile, before[at], site.all, visit);
      } else {
        visit.ops.push_back(before[at]);
        stand_in(visit.ops.back(), own);
        stand_in(visit.ops.back(), whole);
      }
    }
    std::erase_if(visit.frees, [&](const Operand& freed) {
      return same_value(freed, site.own) || same_value(freed, site.all);
    });
    visit.ops.push_back(free_of(tile.array, 0, all));
  }

  /// The product shard by shard, then what else the op does.
  void begin_with_product(const Tile& tile, const Op& op, const Operand& all, Visit& visit) const {
    const SegmentRange range = draft::range_of(op);
    SegmentRange product = range, rest = range;
    if (tile.pair->phase == Phase::kForward)
      product.end = rest.begin = std::min(range.end, static_cast<int>(tile.pair->with) + 1);
    else
      product.begin = rest.end = std::max(range.begin, static_cast<int>(tile.pair->with));
    const Linked linked = link(op, product, rest);
    bool begun = false;
    const auto add = [&](int64_t shard, const program::IntegerRange& rows, const Stand& stand) {
      Op one = shard_op(linked.op, product, shard, rows, visit.block);
      stand_in(one, stand);
      if (std::exchange(begun, true)) go_on(one);
      visit.ops.push_back(std::move(one));
    };
    add(0, {0, tile.rows}, {all, tile.array, 0, tile.chunks()});
    for_each_chunk(tile, [&](int64_t shard, int64_t number) {
      const int64_t index = tile.index(shard, number);
      add(shard, tile.rows_of(number), {all, tile.array, index, index + 1});
    });
    if (rest.begin < rest.end)
      visit.ops.push_back(part_of(linked.op, rest, visit.block, shape_, dtype_));
    visit.frees.insert(visit.frees.end(), linked.values.begin(), linked.values.end());
  }

  void scatter(const Tile& tile, const Site& site, Visit& visit) const {
    const Ops before = std::exchange(visit.ops, {});
    visit.ops.assign(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(site.product));
    end_with_product(tile, site, before, visit);
    bool summed = false;
    for (size_t at = site.exchange + 1; at < before.size(); ++at) {
      if (!summed && names(before[at], site.own)) {
        add_up(tile, site, before[site.product], visit);
        summed = true;
      }
      visit.ops.push_back(before[at]);
    }
    if (!summed) add_up(tile, site, before[site.product], visit);
    std::erase_if(visit.frees, [&](const Operand& freed) { return same_value(freed, site.all); });
  }

  /// What the op does before its product, other sums of that, then the product shard by shard.
  void end_with_product(const Tile& tile, const Site& site, const Ops& ops, Visit& visit) const {
    const Op& op = ops[site.product];
    const int at = static_cast<int>(tile.pair->segment);
    SegmentRange before = draft::range_of(op);
    const SegmentRange product = {at, at + 1};
    (tile.pair->phase == Phase::kForward ? before.end : before.begin) =
        tile.pair->phase == Phase::kForward ? at : at + 1;
    const Linked linked = link(op, before, product);
    if (before.begin < before.end)
      visit.ops.push_back(part_of(linked.op, before, visit.block, shape_, dtype_));
    visit.ops.insert(visit.ops.end(), ops.begin() + static_cast<std::ptrdiff_t>(site.product) + 1,
                     ops.begin() + static_cast<std::ptrdiff_t>(site.exchange));
    bool begun = false;
    const auto add = [&](int64_t shard, const program::IntegerRange& rows, const Stand& stand) {
      Op one = shard_op(linked.op, product, shard, rows, visit.block);
      if (std::exchange(begun, true)) go_on(one, &site.all);
      stand_in(one, stand);
      visit.ops.push_back(std::move(one));
    };
    for_each_chunk(tile, [&](int64_t shard, int64_t number) {
      const int64_t index = tile.index(shard, number);
      add(shard, tile.rows_of(number), {site.all, tile.array, index, index + 1});
      visit.ops.push_back(shift(ops[site.exchange], shard, {tile.array, {index}},
                                {tile.received, {tile.index(tile.ranks - shard, number)}}));
    });
    add(0, {0, tile.rows}, {site.all, tile.array, 0, tile.chunks()});
    visit.frees.insert(visit.frees.end(), linked.values.begin(), linked.values.end());
  }

  static void add_up(const Tile& tile, const Site& site, const Op& product, Visit& visit) {
    const int64_t all = tile.ranks * tile.chunks();
    Op op = draft::kernel_op(draft::kSumShards);
    op.group = product.group;
    for (int64_t index = 0; index < tile.chunks(); ++index)
      op.reads.push_back({tile.array, {index}, Access::kRead, draft::kOwnShard});
    for (int64_t index = tile.chunks(); index < all; ++index)
      op.reads.push_back({tile.received, {index}, Access::kRead, draft::kReceivedShards});
    op.writes = {program::as(site.own, Access::kWrite, draft::kShardSum)};
    visit.ops.push_back(std::move(op));
    visit.ops.push_back(free_of(tile.array, 0, all));
    visit.ops.push_back(free_of(tile.received, tile.chunks(), all));
  }

  /// An op, with values for what its two ranges hand over and what else lay in its workspace.
  struct Linked {
    Op op;
    std::vector<Operand> values;
  };
  Linked link(const Op& op, SegmentRange first, SegmentRange second) const {
    Linked linked{op, {}};
    if (first.begin >= first.end || second.begin >= second.end) return linked;
    for (const int slot : links_between(op, first, second)) {
      const auto found = links_.find(slot);
      if (found == links_.end()) continue;  // a value that the family does not have
      linked.values.push_back({found->second, {}, Access::kRead, slot});
      linked.op.reads.push_back(linked.values.back());
    }
    return linked;
  }

  Op shard_op(const Op& op, SegmentRange range, int64_t shard, const program::IntegerRange& rows,
              int64_t block) const {
    Op one = op;
    one.kernel = &draft::shard_kernel(draft::phase_of(op));
    one.attributes.emplace_back(rows);
    one.attributes.emplace_back(shard);
    take_range(one, range, op, true);
    draft::price(one, shape_, block, dtype_);
    return one;
  }

  /// What others of the op's kind have begun, but for `fresh`.
  static void go_on(Op& op, const Operand* fresh = nullptr) {
    for (Operand& operand : op.writes)
      if (operand.access == Access::kWrite && (!fresh || !same_value(operand, *fresh)))
        operand.access = Access::kUpdate;
  }

  const ModelShape& shape_;
  Dtype dtype_;
  std::vector<Tile> tiles_;
  std::map<int, int> links_;  // array of what passes between the parts of an op, by slot
};

/// Finds the pairs of a draft, decides about each and declares its values.
class Planner {
 public:
  Planner(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
          const draft::StepOptions& options)
      : draft_(draft), shape_(shape), cluster_(cluster), options_(options) {}

  std::vector<Tile> plan() {
    for (int64_t step = 0; step < draft_.schedule.micro_steps && !all_seen(); ++step)
      for (const Visit& visit : draft_.schedule.micro_step(step, {}).visits)
        for (size_t number = 0; number < std::size(kPairs); ++number)
          if (const std::optional<Site> site = find_site(kPairs[number], visit))
            if (!std::exchange(seen_[number], true)) decide(kPairs[number], visit, *site);
    return std::move(tiles_);
  }

  /// Arrays of what may pass between the parts of an op.
  std::map<int, int> links() {
    std::map<int, int> arrays;
    const BlockExtent extent = draft::extent_of(shape_, options_);
    for (const BlockValue value :
         {BlockValue::kQkv, BlockValue::kAttention, BlockValue::kUp, BlockValue::kQkvSum,
          BlockValue::kUpSum, BlockValue::kAttentionGradient, BlockValue::kUpGradient}) {
      const Dtype dtype = value_dtype(value, options_.dtype);
      const int64_t bytes = value_elements(value, extent) * dtype_bytes(options_.dtype);
      if (bytes > 0)
        arrays[draft::block_slot(value)] = draft::declare(
            draft_.program,
            {std::string(value_name(value)) + ".rows", 1, dtype, bytes / dtype_bytes(dtype)});
    }
    return arrays;
  }

 private:
  bool all_seen() const {
    return std::ranges::all_of(seen_, [](bool seen) { return seen; });
  }

  void decide(const Pair& pair, const Visit& visit, const Site& site) {
    const Op& op = visit.ops[site.product];
    const program::ValueArray all = draft_.program.arrays[static_cast<size_t>(site.all.array)];
    const int group = visit.ops[site.exchange].group;
    const std::vector<int64_t> members =
        draft_.program.groups[static_cast<size_t>(group)].members(draft_.rank);
    Tile tile{&pair};
    tile.ranks = static_cast<int64_t>(members.size());
    tile.rows = rows_in(op) / tile.ranks;
    const int64_t row_elements = all.partition.elements / rows_in(op);
    ShardedProduct priced = price(pair, visit, site);
    priced.shard_rows = tile.rows;
    priced.row_bytes = row_elements * dtype_bytes(all.dtype);
    const double rate = cluster_.memory_bytes_per_second;
    if (!pair.gathers && rate > 0)
      priced.sum_seconds =
          static_cast<double>((tile.ranks + 1) * tile.rows * priced.row_bytes) / rate;
    tile.chunk = choose_shard_chunk(priced, options_.tiles,
                                    {collective::spread_of(cluster_, members), cluster_});
    if (tile.chunk == 0) return;
    tile.array = declare(all, ".rows", group, tile, row_elements);
    if (!pair.gathers) tile.received = declare(all, ".received", group, tile, row_elements);
    tiles_.push_back(tile);
  }

  ShardedProduct price(const Pair& pair, const Visit& visit, const Site& site) const {
    const int at = static_cast<int>(pair.segment);
    const Op one =
        part_of(visit.ops[site.product], {at, at + 1}, visit.block, shape_, options_.dtype);
    const ProductSeconds product = product_seconds(one, options_.dtype, cluster_);
    ShardedProduct priced;
    priced.gathers = pair.gathers;
    priced.product_seconds = product.whole;
    priced.call_seconds = product.call;
    const auto computes = [&](const Op& op) {
      priced.beside_seconds += segment_seconds(op, options_.dtype, cluster_);
    };
    const Ops& ops = visit.ops;
    if (pair.gathers)
      for (size_t between = site.exchange + 1; between < site.product; ++between)
        computes(ops[between]);
    else
      for (size_t behind = site.exchange + 1; behind < ops.size() && !names(ops[behind], site.own);
           ++behind)
        computes(ops[behind]);
    return priced;
  }

  int declare(program::ValueArray array, const char* ending, int group, const Tile& tile,
              int64_t row_elements) {
    array.name += ending;
    array.count = tile.ranks * tile.chunks();
    array.partition = {array.partition.elements, tile.chunk * row_elements};
    array.group = group;
    array.joined = true;
    draft_.program.arrays.push_back(std::move(array));
    return static_cast<int>(draft_.program.arrays.size()) - 1;
  }

  draft::Draft& draft_;
  const ModelShape& shape_;
  const Cluster& cluster_;
  const draft::StepOptions& options_;
  std::array<bool, std::size(kPairs)> seen_{};
  std::vector<Tile> tiles_;
};

}  // namespace

void shards(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
            const draft::StepOptions& options) {
  Planner planner(draft, shape, cluster, options);
  std::vector<Tile> tiles = planner.plan();
  if (tiles.empty()) return;
  draft::rewrite_visits(draft,
                        [tiler = Tiler(shape, options.dtype, std::move(tiles), planner.links())](
                            Visit& visit) { tiler.apply(visit); });
}

}  // namespace strait::strategy
