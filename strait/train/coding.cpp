#include "strait/train/coding.h"

#include <span>
#include <vector>

#include "strait/program/program.h"

namespace strait::train {

using program::Pieces;
using runtime::Bound;
using runtime::Instance;

namespace {

/// The parts that an op works on, and where they lie in its numbers and in its pieces.
class Parts {
 public:
  Parts(const Instance& instance, const Bound& numbers, const Bound& pieces, int64_t rank)
      : program_(*instance.program),
        rank_(rank),
        op_(*instance.op),
        group_(instance.program->groups[op_.group]),
        values_(instance.program->arrays[numbers.array]),
        bytes_(instance.program->arrays[pieces.array]),
        numbers_(static_cast<char*>(numbers.data)),
        pieces_(static_cast<uint8_t*>(pieces.data)),
        own_(group_.part(rank)),
        group_first_(group_.first_part(rank)),
        numbers_begin_(program::value_begin(*instance.program, values_, rank)),
        pieces_begin_(program::value_begin(*instance.program, bytes_, rank)) {}

  int64_t first() const {
    return op_.pieces == Pieces::kAll ? 0 : op_.pieces == Pieces::kGroup ? group_first_ : own_;
  }
  int64_t count() const {
    return op_.pieces == Pieces::kAll     ? group_.parts()
           : op_.pieces == Pieces::kGroup ? group_.size
                                          : 1;
  }
  int64_t own() const { return own_; }
  int64_t elements(int64_t part) const { return op_.partition.count(part); }
  codec::Values numbers(int64_t part) const {
    const int64_t offset = op_.partition.begin(part) - numbers_begin_;
    return {numbers_ + offset * dtype_bytes(values_.dtype), values_.dtype, elements(part)};
  }
  /// The piece of a part where it is split as the unit is; of a member of the group by position.
  std::span<uint8_t> piece(const codec::CodecSpec& spec, int64_t part) const {
    const size_t bytes =
        static_cast<size_t>(codec::encoded_bytes(spec, elements(part), values_.dtype));
    if (op_.pieces == Pieces::kGroup || op_.pieces == Pieces::kMember)
      return member(part - group_first_, bytes);
    if (bytes_.dtype == Dtype::kByte)
      return {pieces_ + part * op_.piece_bytes - pieces_begin_, bytes};
    const int64_t offset = op_.partition.begin(part) - pieces_begin_;
    return {pieces_ + offset * dtype_bytes(bytes_.dtype), bytes};
  }
  /// Of a part, in the residuals of the same numbers.
  std::span<float> residual(const Bound& kept, int64_t part) const {
    const program::ValueArray& array = program_.arrays[kept.array];
    const int64_t begin = program::value_begin(program_, array, rank_);
    return {static_cast<float*>(kept.data) + op_.partition.begin(part) - begin,
            static_cast<size_t>(elements(part))};
  }
  std::span<uint8_t> member(int64_t position, size_t bytes) const {
    return {pieces_ + position * op_.piece_bytes, bytes};
  }

 private:
  const program::Program& program_;
  const int64_t rank_;
  const program::Op& op_;
  const program::Group& group_;
  const program::ValueArray& values_;
  const program::ValueArray& bytes_;
  char* numbers_;
  uint8_t* pieces_;
  int64_t own_, group_first_, numbers_begin_, pieces_begin_;
};

/// Of an encode with error feedback; else null.
const Bound* residual_of(const Instance& instance) {
  for (const Bound& operand : instance.writes)
    if (operand.role == program::Role::kState) return &operand;
  return nullptr;
}

}  // namespace

const codec::CodecSpec& Coding::spec(const std::string& text) {
  const auto found = specs_.find(text);
  return found != specs_.end() ? found->second
                               : specs_.emplace(text, codec::parse_codec(text)).first->second;
}

void Coding::encode(const Instance& instance, int64_t rank, device::Arithmetic& arithmetic,
                    double* not_finite) {
  const codec::CodecSpec& codec = spec(instance.op->codec);
  const Parts parts(instance, instance.reads.front(), instance.writes.front(), rank);
  const Bound* kept = residual_of(instance);
  for (int64_t part = parts.first(); part < parts.first() + parts.count(); ++part) {
    if (parts.elements(part) == 0) continue;
    const codec::Values from = parts.numbers(part);
    const std::span<float> residual =
        kept == nullptr ? std::span<float>() : parts.residual(*kept, part);
    arithmetic.encode({codec, {from.data, from.dtype, from.elements}, residual},
                      parts.piece(codec, part), not_finite);
  }
}

void Coding::decode(const Instance& instance, int64_t rank, device::Arithmetic& arithmetic) {
  const codec::CodecSpec& codec = spec(instance.op->codec);
  const Parts parts(instance, instance.writes.front(), instance.reads.front(), rank);
  const bool add = instance.op->accumulate;
  if (instance.op->kind == program::OpKind::kDecode) {
    for (int64_t part = parts.first(); part < parts.first() + parts.count(); ++part) {
      if (parts.elements(part) == 0) continue;
      arithmetic.decode(codec, parts.piece(codec, part), parts.numbers(part), add);
    }
    return;
  }
  const codec::Values out = parts.numbers(parts.own());
  if (out.elements == 0) return;
  const size_t bytes = static_cast<size_t>(codec::encoded_bytes(codec, out.elements, out.dtype));
  std::vector<std::span<const uint8_t>> pieces;
  for (int64_t member = 0; member < parts.count(); ++member)
    pieces.push_back(parts.member(member, bytes));
  if (!add) return arithmetic.decode_sum({codec, pieces, out.elements}, out);
  for (const std::span<const uint8_t> piece : pieces) arithmetic.decode(codec, piece, out, true);
}

}  // namespace strait::train
