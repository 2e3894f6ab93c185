// Executors of encodes and decodes: numbers of a unit to pieces of a codec and back.
#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "strait/base/random.h"
#include "strait/codec/borders.h"
#include "strait/codec/codec.h"
#include "strait/codec/runs.h"
#include "strait/execute/environment.h"
#include "strait/strategy/finish/step_values.h"
#include "strait/strategy/pipeline/kernels.h"
#include "strait/strategy/sharding/kernels.h"

namespace strait::execute {
namespace {

using runtime::Bound;
using runtime::Execute;
using runtime::Instance;
using strategy::Pieces;

/// The parts that an op works on, and where they lie in its numbers and in its pieces.
class Parts {
 public:
  Parts(const Instance& instance, const Bound& numbers, const Bound& pieces)
      : program_(*instance.program),
        rank_(instance.rank),
        op_(*instance.op),
        group_(instance.program->groups[op_.group]),
        values_(instance.program->arrays[numbers.array]),
        bytes_(instance.program->arrays[pieces.array]),
        numbers_(static_cast<char*>(numbers.data)),
        pieces_(static_cast<uint8_t*>(pieces.data)),
        which_(static_cast<Pieces>(instance.integer(strategy::kPieces))),
        own_(group_.part(rank_)),
        group_first_(group_.first_part(rank_)),
        numbers_begin_(program::value_begin(*instance.program, values_, rank_)),
        pieces_begin_(program::value_begin(*instance.program, bytes_, rank_)) {}

  int64_t first() const {
    return which_ == Pieces::kAll ? 0 : which_ == Pieces::kGroup ? group_first_ : own_;
  }
  int64_t count() const {
    return which_ == Pieces::kAll ? group_.parts() : which_ == Pieces::kGroup ? group_.size : 1;
  }
  int64_t own() const { return own_; }
  /// Calls use(Stretch) for the stretches of a part between borders of the codec.
  template <class Use>
  void for_each_stretch(const codec::BorderedCodec& codec, int64_t part, const Use& use) const {
    codec.for_each_stretch({numbers_, values_.dtype, 0}, numbers_begin_, op_.partition.begin(part),
                           op_.partition.end(part), use);
  }
  /// The piece of a part where it is split as the unit is; of a member of the group by position.
  uint8_t* piece(int64_t part) const {
    if (which_ == Pieces::kGroup || which_ == Pieces::kMember) return member(part - group_first_);
    if (bytes_.dtype == Dtype::kByte) return pieces_ + part * op_.piece_bytes - pieces_begin_;
    const int64_t offset = op_.partition.begin(part) - pieces_begin_;
    return pieces_ + offset * dtype_bytes(bytes_.dtype);
  }
  /// Of a stretch, in the residuals of the same numbers.
  std::span<float> residual(const Bound& kept, const codec::Stretch& at) const {
    const program::ValueArray& array = program_.arrays[kept.array];
    const int64_t begin = program::value_begin(program_, array, rank_);
    return {static_cast<float*>(kept.data) + at.first - begin,
            static_cast<size_t>(at.numbers.elements)};
  }
  uint8_t* member(int64_t position) const { return pieces_ + position * op_.piece_bytes; }

 private:
  const program::Program& program_;
  const int64_t rank_;
  const program::Op& op_;
  const program::Group& group_;
  const program::ValueArray& values_;
  const program::ValueArray& bytes_;
  char* numbers_;
  uint8_t* pieces_;
  Pieces which_;
  int64_t own_, group_first_, numbers_begin_, pieces_begin_;
};

/// Of a unit in an update. Positions are the same on all ranks and hops, so that what is sent of
/// the sum is what all have sent; roundings are each encode's own.
uint64_t draw_key(uint64_t seed, const codec::CodecSpec& codec, const Instance& instance) {
  const double* step = static_cast<const double*>(instance.read(strategy::kEncodeStep));
  if (step == nullptr) return 0;
  const Bound& numbers = *instance.find_read(strategy::kEncodeNumbers);
  const RandomStream common(seed, instance.array(numbers).name,
                            static_cast<uint64_t>(step[strategy::kUpdatesBefore]),
                            static_cast<uint64_t>(numbers.index));
  if (!codec.stochastic) return common.key();
  const bool again = static_cast<Pieces>(instance.integer(strategy::kPieces)) == Pieces::kMember;
  const int64_t hop = 2 * instance.op->group + (again ? 1 : 0);
  return RandomStream(common.key(), "rounding", static_cast<uint64_t>(instance.rank),
                      static_cast<uint64_t>(hop))
      .key();
}

/// Where an encode counts what is not finite; null: nowhere.
double* not_finite(const Instance& instance, int slot) {
  double* agreed = static_cast<double*>(instance.write(slot));
  return agreed != nullptr ? agreed + strategy::kNotFinite : nullptr;
}

void encode(uint64_t seed, const codec::BorderedCodec& codec, device::Arithmetic& arithmetic,
            const Instance& instance) {
  const uint64_t key = draw_key(seed, codec.codec, instance);
  const Parts parts(instance, *instance.find_read(strategy::kEncodeNumbers),
                    *instance.find_write(strategy::kEncodePieces));
  const Bound* kept = instance.find_write(strategy::kEncodeResidual);
  double* const lost = not_finite(instance, strategy::kEncodeAgreed);
  for (int64_t part = parts.first(); part < parts.first() + parts.count(); ++part)
    parts.for_each_stretch(codec, part, [&](const codec::Stretch& at) {
      const auto& [data, dtype, elements] = at.numbers;
      const std::span<float> residual =
          kept == nullptr ? std::span<float>() : parts.residual(*kept, at);
      const codec::Draw draw{key, static_cast<uint64_t>(at.first)};
      arithmetic.encode({codec.codec, {data, dtype, elements}, residual, draw},
                        at.in(parts.piece(part)), lost);
    });
}

/// The numbers, and whether the pieces are added to them.
struct Decoded {
  Parts parts;
  bool add;
  explicit Decoded(const Instance& instance)
      : parts(instance, *instance.find_write(strategy::kDecodeNumbers),
              *instance.find_read(strategy::kDecodePieces)),
        add(instance.find_write(strategy::kDecodeNumbers)->access == program::Access::kAdd) {}
};

void decode(const codec::BorderedCodec& codec, device::Arithmetic& arithmetic,
            const Instance& instance) {
  const Decoded to(instance);
  const Parts& parts = to.parts;
  for (int64_t part = parts.first(); part < parts.first() + parts.count(); ++part)
    parts.for_each_stretch(codec, part, [&](const codec::Stretch& at) {
      arithmetic.decode(codec.codec, at.in(parts.piece(part)), at.numbers, to.add);
    });
}

void decode_sum(const codec::BorderedCodec& codec, device::Arithmetic& arithmetic,
                const Instance& instance) {
  const Decoded to(instance);
  const Parts& parts = to.parts;
  parts.for_each_stretch(codec, parts.own(), [&](const codec::Stretch& at) {
    std::vector<std::span<const uint8_t>> pieces;
    for (int64_t member = 0; member < parts.count(); ++member)
      pieces.push_back(at.in(parts.member(member)));
    if (!to.add)
      return arithmetic.decode_sum({codec.codec, pieces, at.numbers.elements}, at.numbers);
    for (const std::span<const uint8_t> piece : pieces)
      arithmetic.decode(codec.codec, piece, at.numbers, true);
  });
}

/// Whole gradients, and pieces of which each holds a part of every run (codec/runs.h).
class LayerParts {
 public:
  LayerParts(const Instance& instance, const codec::Runs& runs, const Bound& numbers,
             const Bound& pieces)
      : runs_(runs),
        op_(*instance.op),
        dtype_(instance.program->arrays[numbers.array].dtype),
        numbers_(static_cast<char*>(numbers.data)),
        pieces_(static_cast<uint8_t*>(pieces.data)),
        own_(instance.program->groups[op_.group].part(instance.rank)),
        only_own_(static_cast<Pieces>(instance.integer(strategy::kPieces)) == Pieces::kMember) {}

  int64_t own() const { return own_; }
  /// Alone, and so numbers of residuals are packed; else they are the unit's.
  bool only_own() const { return only_own_; }
  /// Calls use(part) for the parts that the op works on.
  template <class Use>
  void for_each(const Use& use) const {
    for (int64_t part = 0; part < runs_.parts; ++part)
      if (!only_own_ || part == own_) use(part);
  }
  /// Of one run, the elements of one part.
  struct Stretch {
    const codec::CodecSpec& codec;
    codec::Values numbers;
    std::span<uint8_t> piece;  // where they stand in the piece of a member
    int64_t first;             // of the elements in the unit
    int64_t packed;            // among those of the part
  };
  /// Calls use(Stretch) for every run.
  template <class Use>
  void for_each_run(int64_t part, int64_t member, const Use& use) const {
    uint8_t* piece = pieces_ + member * op_.piece_bytes;
    int64_t first = 0, packed = 0;
    for (size_t i = 0; i < runs_.runs.size(); ++i) {
      const auto& [codec, elements] = runs_.runs[i];
      const int64_t grain = runs_.grain(i), begin = std::min(part * grain, elements);
      const int64_t count = std::min(grain, elements - begin);
      const size_t bytes = static_cast<size_t>(codec::encoded_bytes(codec, count, dtype_));
      const codec::Values numbers{numbers_ + (first + begin) * dtype_bytes(dtype_), dtype_, count};
      if (count > 0)
        use(Stretch{codec, numbers, std::span<uint8_t>(piece, bytes), first + begin, packed});
      piece += codec::encoded_bytes(codec, grain, dtype_);
      packed += grain;
      first += elements;
    }
  }

 private:
  const codec::Runs& runs_;
  const program::Op& op_;
  const Dtype dtype_;
  char* numbers_;
  uint8_t* pieces_;
  const int64_t own_;
  const bool only_own_;
};

void encode_layers(uint64_t seed, const codec::Runs& runs, device::Arithmetic& arithmetic,
                   const Instance& instance) {
  const LayerParts parts(instance, runs, *instance.find_read(strategy::kEncodeNumbers),
                         *instance.find_write(strategy::kEncodePieces));
  double* const lost = not_finite(instance, strategy::kEncodeAgreed);
  float* residual = static_cast<float*>(instance.write(strategy::kEncodeResidual));
  parts.for_each([&](int64_t part) {
    parts.for_each_run(part, part, [&](const LayerParts::Stretch& at) {
      const auto& [data, dtype, elements] = at.numbers;
      device::EncodeCall call{at.codec, {data, dtype, elements}};
      if (residual != nullptr && at.codec.error_feedback)
        call.residual = {residual + (parts.only_own() ? at.packed : at.first),
                         static_cast<size_t>(elements)};
      call.draw = {draw_key(seed, at.codec, instance), static_cast<uint64_t>(at.first)};
      arithmetic.encode(call, at.piece, lost);
    });
  });
}

LayerParts decoded_layers(const codec::Runs& runs, const Instance& instance) {
  return LayerParts(instance, runs, *instance.find_write(strategy::kDecodeNumbers),
                    *instance.find_read(strategy::kDecodePieces));
}

void decode_layers(const codec::Runs& runs, device::Arithmetic& arithmetic,
                   const Instance& instance) {
  const LayerParts parts = decoded_layers(runs, instance);
  parts.for_each([&](int64_t part) {
    parts.for_each_run(part, part, [&](const LayerParts::Stretch& at) {
      arithmetic.decode(at.codec, at.piece, at.numbers, false);
    });
  });
}

/// The rank's own part of all members, in rank order.
void decode_sum_layers(const codec::Runs& runs, device::Arithmetic& arithmetic,
                       const Instance& instance) {
  const LayerParts parts = decoded_layers(runs, instance);
  for (int64_t member = 0; member < runs.parts; ++member)
    parts.for_each_run(parts.own(), member, [&](const LayerParts::Stretch& at) {
      arithmetic.decode(at.codec, at.piece, at.numbers, member > 0);
    });
}

codec::Values all_numbers(const Instance& instance, const Bound& operand) {
  const Dtype dtype = instance.array(operand).dtype;
  return {operand.data, dtype, operand.bytes / dtype_bytes(dtype)};
}

void encode_activation(const codec::CodecSpec& codec, device::Arithmetic& arithmetic,
                       const Instance& instance) {
  const codec::Values from = all_numbers(instance, *instance.find_read(strategy::kActivationFrom));
  const Bound& to = *instance.find_write(strategy::kActivationTo);
  arithmetic.encode({codec, {from.data, from.dtype, from.elements}},
                    {static_cast<uint8_t*>(to.data), static_cast<size_t>(to.bytes)},
                    not_finite(instance, strategy::kActivationAgreed));
}

void decode_activation(const codec::CodecSpec& codec, device::Arithmetic& arithmetic,
                       const Instance& instance) {
  const Bound& from = *instance.find_read(strategy::kActivationFrom);
  arithmetic.decode(codec,
                    {static_cast<const uint8_t*>(from.data), static_cast<size_t>(from.bytes)},
                    all_numbers(instance, *instance.find_write(strategy::kActivationTo)), false);
}

}  // namespace

void add_coding_executors(runtime::Executors& executors, device::Arithmetic& arithmetic,
                          uint64_t seed) {
  const auto bind = [&arithmetic](auto* execute, auto codec) {
    return Execute([&arithmetic, execute, codec = std::move(codec)](const Instance& instance) {
      execute(codec, arithmetic, instance);
    });
  };
  const auto add = [&](const program::Kernel& kernel, auto* execute, auto* execute_layers) {
    executors.add(kernel, [=](const program::Program&, const program::Op& op) {
      return codec::is_runs(op.codec) ? bind(execute_layers, codec::parse_runs(op.codec))
                                      : bind(execute, codec::parse_bordered(op.codec));
    });
  };
  executors.add(
      strategy::kEncode, [seed, &arithmetic](const program::Program&, const program::Op& op) {
        const auto bind_seeded = [&](auto* execute, auto codec) {
          return Execute([&arithmetic, seed, execute, codec = std::move(codec)](const Instance& i) {
            execute(seed, codec, arithmetic, i);
          });
        };
        return codec::is_runs(op.codec) ? bind_seeded(&encode_layers, codec::parse_runs(op.codec))
                                        : bind_seeded(&encode, codec::parse_bordered(op.codec));
      });
  add(strategy::kDecode, &decode, &decode_layers);
  add(strategy::kDecodeSum, &decode_sum, &decode_sum_layers);
  const auto add_activation = [&](const program::Kernel& kernel, auto* execute) {
    executors.add(kernel, [=](const program::Program&, const program::Op& op) {
      return bind(execute, codec::parse_codec(op.codec));
    });
  };
  add_activation(strategy::kEncodeActivation, &encode_activation);
  add_activation(strategy::kDecodeActivation, &decode_activation);
  executors.add(strategy::kClear, Execute([&arithmetic](const Instance& instance) {
                  arithmetic.fill_zero(instance.writes[0].data, instance.writes[0].bytes);
                }));
}

}  // namespace strait::execute
