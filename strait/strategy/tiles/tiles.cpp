#include "strait/strategy/tiles/tiles.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strait/strategy/tiles/chunks.h"
#include "strait/strategy/tiles/parts.h"
#include "strait/strategy/tiles/shards.h"

namespace strait::strategy {
namespace {

using draft::Purpose;
using draft::Visit;
using program::Access;
using program::Op;
using program::Operand;
using program::OpKind;
using Ops = std::vector<Op>;

/// A product that a phase does last in its range, and what of it is summed over x. `input`: what a
/// forward that keeps nothing hands to it from the segment before.
struct Product {
  Segment segment;
  Phase phase;
  BlockValue sum;
  std::optional<BlockValue> input = {};
};
constexpr Product kProducts[] = {
    {Segment::kOutput, Phase::kForward, BlockValue::kOutputSum, BlockValue::kAttention},
    {Segment::kDown, Phase::kForward, BlockValue::kDownSum, BlockValue::kUp},
    {Segment::kUp, Phase::kBackwardInput, BlockValue::kNormedMlpGradient},
    {Segment::kQkv, Phase::kBackwardInput, BlockValue::kNormedAttentionGradient}};

/// One that is taken apart.
struct Tile {
  Product product;
  int64_t rows = 0, chunk = 0;
  int array = -1;  // of the joined chunks of the sum
  int input = -1;  // array of Product::input
  int64_t chunks() const { return (rows + chunk - 1) / chunk; }
  Operand part(const Operand& whole, int64_t number) const {
    return {array, {number}, whole.access, whole.slot};
  }
};

/// What the op makes of the product, if that comes last in it.
const Operand* result_of(const Op& op, const Product& product) {
  if (!draft::works_on_segments(op) || draft::works_on_rows(op) ||
      draft::phase_of(op) != product.phase)
    return nullptr;
  const SegmentRange range = draft::range_of(op);
  const int last = product.phase == Phase::kForward ? range.end - 1 : range.begin;
  if (last != static_cast<int>(product.segment)) return nullptr;
  const Operand* result = program::operand_in(op.writes, draft::block_slot(product.sum));
  return result && result->access == Access::kWrite ? result : nullptr;
}

/// The all-reduce of `value` behind the op at `at`, with sums of other values in between alone; -1:
/// there is none.
int64_t sum_behind(std::span<const Op> ops, size_t at, const Operand& value) {
  for (size_t next = at + 1; next < ops.size(); ++next) {
    if (ops[next].kind != OpKind::kAllReduce) return -1;
    if (same_value(ops[next].reads.front(), value)) return static_cast<int64_t>(next);
  }
  return -1;
}

/// Takes the products of visits apart.
class Tiler {
 public:
  Tiler(const ModelShape& shape, Dtype dtype, std::vector<Tile> tiles)
      : shape_(shape), dtype_(dtype), tiles_(std::move(tiles)) {}

  void apply(Visit& visit) const {
    const Ops before = std::exchange(visit.ops, {});
    std::vector<Named> parts;
    for (size_t at = 0; at < before.size(); ++at) {
      const Op op = in_parts(before[at], parts);
      const Tile* tile = find(op);
      const int64_t sum =
          tile ? sum_behind(before, at, *result_of(op, tile->product)) : int64_t{-1};
      if (sum < 0) {
        visit.ops.push_back(op);
        continue;
      }
      const Operand whole = *result_of(op, tile->product);
      take_apart(*tile, op, std::span(before).subspan(at + 1, sum - at), visit);
      parts.push_back({whole, tile});
      at = static_cast<size_t>(sum);
    }
    for (const Named& named : parts) free_parts(named, visit);
  }

 private:
  /// A value that is there in parts.
  struct Named {
    Operand whole;
    const Tile* tile;
  };

  /// One op frees all parts of a value, where the visit frees it.
  static void free_parts(const Named& named, Visit& visit) {
    const auto is_it = [&](const Operand& freed) { return same_value(freed, named.whole); };
    if (std::erase_if(visit.frees, is_it) == 0) return;
    Op op = draft::free_op(named.tile->part(named.whole, 0));
    for (int64_t k = 1; k < named.tile->chunks(); ++k)
      op.writes.push_back(draft::free_op(named.tile->part(named.whole, k)).writes.front());
    visit.ops.push_back(std::move(op));
  }

  const Tile* find(const Op& op) const {
    for (const Tile& tile : tiles_)
      if (result_of(op, tile.product) && rows_in(op) == tile.rows) return &tile;
    return nullptr;
  }

  static std::vector<Operand> in_parts(const std::vector<Operand>& operands,
                                       const std::vector<Named>& parts) {
    std::vector<Operand> result;
    for (const Operand& operand : operands) {
      const auto found = std::ranges::find_if(
          parts, [&](const Named& named) { return same_value(named.whole, operand); });
      if (found == parts.end()) result.push_back(operand);
      for (int64_t k = 0; found != parts.end() && k < found->tile->chunks(); ++k)
        result.push_back(found->tile->part(operand, k));
    }
    return result;
  }

  static Op in_parts(Op op, const std::vector<Named>& parts) {
    for (auto* operands : {&op.reads, &op.writes, &op.waits})
      *operands = in_parts(*operands, parts);
    return op;
  }

  /// What the op does before its product, then chunk by chunk that and its sum, the last of `sums`.
  /// The others are of what stands before the product.
  void take_apart(const Tile& tile, const Op& op, std::span<const Op> sums, Visit& visit) const {
    const int at = static_cast<int>(tile.product.segment);
    const bool forward = tile.product.phase == Phase::kForward;
    SegmentRange before = draft::range_of(op);
    (forward ? before.end : before.begin) = forward ? at : at + 1;
    // A forward that keeps nothing has had the product's input in its workspace.
    Op with_input = op;
    std::optional<Operand> input;
    if (const auto& value = tile.product.input; value && before.begin < before.end) {
      const int slot = draft::block_slot(*value);
      if (!draft::places_in({&op, 1}).keeps && !draft::find_operand({&op, 1}, slot))
        input = Operand{tile.input, {}, Access::kRead, slot};
    }
    if (input) with_input.reads.push_back(*input);
    if (before.begin < before.end)
      visit.ops.push_back(part_of(with_input, before, visit.block, shape_, dtype_));
    visit.ops.insert(visit.ops.end(), sums.begin(), sums.end() - 1);
    for (int64_t k = 0; k < tile.chunks(); ++k) {
      visit.ops.push_back(chunk(tile, with_input, k, visit.block));
      Op sum = sums.back();
      sum.reads = {tile.part(sum.reads.front(), k)};
      sum.writes = {tile.part(sum.writes.front(), k)};
      visit.ops.push_back(std::move(sum));
    }
    if (input) visit.ops.push_back(draft::free_op(*input));
  }

  Op chunk(const Tile& tile, const Op& op, int64_t number, int64_t block) const {
    const int at = static_cast<int>(tile.product.segment);
    Op chunk = op;
    chunk.kernel = &draft::rows_kernel(tile.product.phase);
    const int64_t first = number * tile.chunk;
    chunk.attributes.emplace_back(
        program::IntegerRange{first, std::min(first + tile.chunk, tile.rows)});
    draft::set_range(chunk, {at, at + 1}, {&op, 1});
    for (Operand& operand : chunk.writes)
      if (operand.slot == draft::block_slot(tile.product.sum)) operand = tile.part(operand, number);
    draft::price(chunk, shape_, block, dtype_);
    return chunk;
  }

  const ModelShape& shape_;
  Dtype dtype_;
  std::vector<Tile> tiles_;
};

/// Finds the products of a draft, decides about each and declares its values.
class Planner {
 public:
  Planner(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
          const draft::StepOptions& options)
      : draft_(draft), shape_(shape), cluster_(cluster), options_(options) {}

  std::vector<Tile> plan() {
    const bool trains = options_.purpose == Purpose::kTrain;
    size_t left = trains ? std::size(kProducts) : 2;  // an evaluation has the forward ones
    for (int64_t step = 0; step < draft_.schedule.micro_steps && left > 0; ++step)
      for (const Visit& visit : draft_.schedule.micro_step(step, {}).visits) left -= look_at(visit);
    return std::move(tiles_);
  }

 private:
  /// How many products were seen for the first time.
  size_t look_at(const Visit& visit) {
    size_t seen = 0;
    for (size_t at = 0; at < visit.ops.size(); ++at)
      for (size_t number = 0; number < std::size(kProducts); ++number) {
        const Operand* result = result_of(visit.ops[at], kProducts[number]);
        if (seen_[number] || !result) continue;
        const int64_t sum = sum_behind(visit.ops, at, *result);
        if (sum < 0) continue;
        seen_[number] = true;
        ++seen;
        decide(kProducts[number], visit, at, static_cast<size_t>(sum));
      }
    return seen;
  }

  void decide(const Product& product, const Visit& visit, size_t at, size_t sum) {
    const Op& op = visit.ops[at];
    const Operand result = *result_of(op, product);
    const program::ValueArray whole = draft_.program.arrays[static_cast<size_t>(result.array)];
    Tile tile{product};
    tile.rows = rows_in(op);
    const program::Group& group = draft_.program.groups[static_cast<size_t>(visit.ops[sum].group)];
    const SumPath path{collective::spread_of(cluster_, group.members(draft_.rank)), cluster_};
    const int64_t row_elements = whole.partition.elements / tile.rows;
    SummedProduct priced = price(op, product, visit.block);
    priced.rows = tile.rows;
    priced.row_bytes = row_elements * dtype_bytes(whole.dtype);
    priced.behind_seconds = seconds_behind(visit, sum, result);
    tile.chunk = choose_chunk(priced, options_.tiles, path);
    if (tile.chunk >= tile.rows) return;
    tile.array =
        declare(whole, {whole.partition.elements, tile.chunk * row_elements}, tile.chunks());
    if (product.input) tile.input = declare_input(*product.input);
    tiles_.push_back(tile);
  }

  SummedProduct price(Op op, const Product& product, int64_t block) const {
    const int at = static_cast<int>(product.segment);
    draft::set_range(op, {at, at + 1}, {&op, 1});
    draft::price(op, shape_, block, options_.dtype);
    const ProductSeconds seconds = product_seconds(op, options_.dtype, cluster_);
    SummedProduct priced;
    priced.product_seconds = seconds.whole;
    priced.call_seconds = seconds.call;
    return priced;
  }

  /// Of what is computed before somebody needs the sum.
  double seconds_behind(const Visit& visit, size_t sum, const Operand& result) const {
    double seconds = 0;
    for (size_t next = sum + 1; next < visit.ops.size() && !names(visit.ops[next], result); ++next)
      seconds += segment_seconds(visit.ops[next], options_.dtype, cluster_);
    return seconds;
  }

  int declare(program::ValueArray array, program::Partition parts, int64_t chunks) {
    array.name += ".rows";
    array.count = chunks;
    array.partition = parts;
    array.joined = true;
    draft_.program.arrays.push_back(std::move(array));
    return static_cast<int>(draft_.program.arrays.size()) - 1;
  }

  /// One value, unless forwards keep it all.
  int declare_input(BlockValue value) {
    if (options_.purpose == Purpose::kTrain && options_.recompute.every == 0) return -1;
    const BlockExtent extent = draft::extent_of(shape_, options_);
    return draft::declare(draft_.program, {std::string(value_name(value)) + ".rows", 1,
                                           options_.dtype, value_elements(value, extent)});
  }

  draft::Draft& draft_;
  const ModelShape& shape_;
  const Cluster& cluster_;
  const draft::StepOptions& options_;
  std::array<bool, std::size(kProducts)> seen_{};
  std::vector<Tile> tiles_;
};

}  // namespace

void tiles(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
           const draft::StepOptions& options) {
  const bool computes = options.purpose == Purpose::kTrain || options.purpose == Purpose::kEvaluate;
  if (!computes || options.tiles.choice == draft::Tiles::Choice::kOff ||
      draft.mesh.axis("x").size == 1 || !draft.schedule.micro_step)
    return;
  if (shape.splits_rows) return shards(draft, shape, cluster, options);
  std::vector<Tile> tiles = Planner(draft, shape, cluster, options).plan();
  if (tiles.empty()) return;
  draft::rewrite_visits(draft, [tiler = Tiler(shape, options.dtype, std::move(tiles))](
                                   Visit& visit) { tiler.apply(visit); });
}

}  // namespace strait::strategy
