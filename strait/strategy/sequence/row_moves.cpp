#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "strait/base/errors.h"
#include "strait/strategy/sequence/exchange.h"

namespace strait::strategy {

using program::Access;
using program::Op;
using program::Operand;
using program::OpKind;

namespace {

/// Steps stand in pairs.
RemapStep place_behind(RemapStep pack) {
  return static_cast<RemapStep>(static_cast<int>(pack) + 1);
}
bool packs(RemapStep step) { return static_cast<int>(step) % 2 == 0; }
bool moves_qkv(RemapStep step) {
  return step == RemapStep::kPackQkv || step == RemapStep::kPlaceQkv ||
         step == RemapStep::kPackQkvGradient || step == RemapStep::kPlaceQkvGradient;
}
bool moves_stream(RemapStep step) { return step >= RemapStep::kPackInput; }

}  // namespace

RowMoves::RowMoves(draft::Draft& draft, const BlockExtent& extent, Dtype dtype,
                   const sequence::RankLayout& layout, const DocumentAxis& axis)
    : axis_(axis),
      moves_(layout.moved),
      attention_rows_(layout.attended_rows()),
      pads_(layout.rows > layout.linear_rows && layout.attention_rows > layout.linear_rows) {
  for (size_t move = 0; move < moves_.size(); ++move) {
    const int64_t rows = moves_[move].end - moves_[move].begin;
    const auto declare = [&](const char* name, int64_t width) {
      return draft::declare(draft.program,
                            {fmt::format("moved_{}.{}", name, move), 1, dtype, rows * width});
    };
    if (layout.remapping == sequence::Remapping::kResidual) {
      stream_.push_back(declare("stream", extent.width));
      continue;
    }
    qkv_.push_back(declare("qkv", extent.qkv_width()));
    attention_.push_back(declare("attention", extent.attention_width()));
  }
}

Operand RowMoves::moved(RemapStep step, size_t move) const {
  return {(moves_stream(step) ? stream_ : moves_qkv(step) ? qkv_ : attention_)[move], {}};
}

Op RowMoves::step(const Op& attention, RemapStep step, size_t move) const {
  Op op = moving_op(attention, draft::remap_kernel(step), axis_.axis.group, attention_rows_);
  op.attributes.push_back(program::IntegerRange{moves_[move].begin, moves_[move].end});
  const int slot = draft::block_slot(BlockValue::kMovedRows);
  if (packs(step))
    op.writes.push_back(program::as(moved(step, move), Access::kWrite, slot));
  else
    op.reads.push_back(program::as(moved(step, move), Access::kRead, slot));
  return op;
}

Op RowMoves::message(bool sends, size_t move, const Operand& rows) const {
  return message_op(sends, axis_.axis.group, axis_.rows_lane, moves_[move].other, rows);
}

RowMoves::Arrivals RowMoves::start(const Op& attention, RemapStep pack,
                                   const std::vector<Operand>& values, bool to_attention,
                                   std::vector<Op>& ops) const {
  Arrivals arrivals{place_behind(pack), values};
  for (size_t move = 0; move < moves_.size(); ++move) {
    const bool sends = moves_[move].given != to_attention;
    if (sends) {
      Op one = step(attention, pack, move);
      for (const Operand& value : values) {
        const bool zeroes = pack == RemapStep::kPackMiddleGradient ||
                            (pack == RemapStep::kPackQkvGradient && pads_);
        if (zeroes)
          one.writes.push_back(program::as(value, Access::kUpdate, value.slot));
        else
          one.reads.push_back(program::as(value, Access::kRead, value.slot));
      }
      ops.push_back(std::move(one));
    } else {
      arrivals.pending.push_back(move);
    }
    ops.push_back(message(sends, move, moved(pack, move)));
    if (sends) ops.push_back(draft::free_op(moved(pack, move)));
  }
  return arrivals;
}

void RowMoves::place(const Op& attention, Arrivals& arrivals, int64_t end,
                     std::vector<Op>& ops) const {
  std::erase_if(arrivals.pending, [&](size_t move) {
    if (end >= 0 && moves_[move].begin >= end) return false;
    Op one = step(attention, arrivals.place, move);
    for (const Operand& value : arrivals.values)
      one.writes.push_back(program::as(value, Access::kUpdate, value.slot));
    ops.push_back(std::move(one));
    ops.push_back(draft::free_op(moved(arrivals.place, move)));
    return true;
  });
}

}  // namespace strait::strategy
