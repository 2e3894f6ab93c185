// Declares the values of training state in a program: shards of weights, gradients and moments,
// gathered units, full gradients and the pieces of codecs, one array per run of equal units. A
// placement decides only their partitions and formats.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "strait/codec/borders.h"
#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/program/program.h"
#include "strait/shape/shape.h"
#include "strait/strategy/sharding/low_rank.h"
#include "strait/strategy/sharding/placement.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

using draft::kLocalState;
using draft::kMasterState;

/// What checkpoints call the residuals of the nth encode.
inline constexpr const char* kResidualState = "residual/";

/// What a unit value is. The letter is the array's name before the dot.
enum class UnitValue : uint8_t {
  kShard,            // w: resident weights, numbers or pieces of the update's codec
  kMaster,           // p: the optimizer's own weights, when there is a codec for updates
  kSecondary,        // s: secondary copy of the weights, numbers or pieces
  kGathered,         // W: the whole unit, transient; when weights are split or kept in pieces
  kPieces,           // E: pieces of the whole unit on their way into W
  kSecondaryPieces,  // F: the same from the secondary copy
  kGradient,         // g: accumulated gradient, resident
  kFull,             // G: whole gradient of one micro-step; only when gradients are split
  kReduced,  // R: reduced inside the inner group, not yet across; only with sums across every
             // micro-step
  kMoment,   // m, v: optimizer state; `nth`: which
  kSent,  // S0, S1, ...: pieces of a gradient for the members of a hop, or numbers that are summed
          // on their way; `nth`: the hop
  kReceived,  // T0, T1, ...: pieces from the members of a hop
  kLeft,      // P: left factors of a gradient of low rank, and what has none
  kRight,     // V: its right factors
  kFactors,   // q: the right factors of the step before, resident
  kResidual,  // e0, e1, ...: what the encodes of a hop have lost (+ef), resident; `nth`: the hop,
              // and for the sum across replicas, which is encoded twice, one more
};
/// Whether an array holds residuals of error feedback.
inline bool is_residual(const program::ValueArray& array) { return array.address.by_sender; }

/// Element types of a program: what blocks compute in, and what state is kept and summed in.
struct Types {
  Dtype compute = Dtype::kFloat32;
  Dtype state = Dtype::kFloat32;
};
/// bf16 and fp16 compute on fp32 state; the other types on their own.
inline Types types_of(Dtype compute) {
  return {compute, dtype_bytes(compute) == 2 ? Dtype::kFloat32 : compute};
}

/// Pieces of a codec that an op encodes, moves or decodes: parts of `partition` over `group`.
struct PieceFormat {
  codec::CodecSpec codec;
  program::Partition partition;  // of the unit's elements
  int group = -1;
  int64_t piece_bytes = 0, metadata_bytes = 0;
  codec::Runs runs = {};  // of the layers of the unit; empty: one codec for all elements
  std::vector<int64_t> borders = {};  // of the unit, where its blocks end (codec/borders.h)
  /// What ops are marked with.
  std::string codec_text() const {
    return runs.runs.empty() ? codec::print_bordered({codec, borders, metadata_bytes})
                             : codec::print_runs(runs);
  }
  /// The pieces of all parts, one after another.
  program::Partition bytes(int64_t parts) const { return {parts * piece_bytes, piece_bytes}; }
};

/// Arrays of all unit values of a program. Lives while a program is being built.
class UnitValues {
 public:
  /// Declares groups "world", "replica", "data", those of the hops, "across" and "secondary", and
  /// the resident arrays of the draft's units.
  UnitValues(draft::Draft& draft, const ModelShape& shape, const Placement& placement,
             const Cluster& cluster, const draft::StepOptions& options);

  void declare_gradients(const draft::StepOptions& options);
  /// W and what it is gathered through; `secondary`: the program uses the secondary copy.
  void declare_gathered(bool secondary);
  /// Weights are used from a transient copy W.
  bool copies() const { return placement_.weights > 1 || keeps_pieces(); }
  /// The weights' shards are pieces of a codec, not numbers that blocks could compute on.
  bool keeps_pieces() const {
    return placement_.has_master() && !is_numbers(placement_.codecs.update);
  }
  /// Pieces of this codec are numbers of the type that blocks compute in.
  bool is_numbers(const codec::CodecSpec& codec) const {
    return (codec.kind == codec::CodecKind::kBfloat16 && types_.compute == Dtype::kBfloat16) ||
           (codec.kind == codec::CodecKind::kFloat16 && types_.compute == Dtype::kFloat16);
  }
  /// The sum across replicas is an all-reduce of the gradient in this codec's numbers: nothing is
  /// lost that a residual would keep, and every level is crossed once, whichever form the
  /// all-reduce takes.
  bool sums_numbers(const codec::CodecSpec& codec) const {
    return codec.kind == codec::CodecKind::kBfloat16 && !codec.error_feedback;
  }
  bool has(UnitValue value) const { return first_[index_of(value)] >= 0; }
  program::Operand operand(UnitValue value, int64_t unit, int64_t nth = 0) const;

  /// Split of the unit over the first `hops` hops.
  program::Partition partition(int64_t unit, int64_t hops) const;
  /// Over the optimizer's span.
  program::Partition partition(int64_t unit) const { return partition(unit, num_hops()); }
  /// Pieces that weights move in: of the update's codec when they are kept so, else of their own.
  PieceFormat weight_pieces(int64_t unit) const;
  PieceFormat secondary_pieces(int64_t unit) const;
  /// Pieces of the gradient on `hop`; hop == num_hops(): across replicas.
  PieceFormat gradient_pieces(int64_t unit, int64_t hop) const;

  /// The sum across replicas is that of factors of low rank.
  bool low_rank() const {
    return !placement_.codecs.gradients.empty() &&
           codec::is_low_rank(placement_.codecs.gradients.back());
  }
  LowRankUnit low_rank_of(int64_t unit) const {
    return low_rank_unit(shape_.units[static_cast<size_t>(unit)],
                         placement_.layers.at(static_cast<size_t>(unit)),
                         placement_.layers_change ? placement_.codecs.gradients.back().rank : 0);
  }

  int64_t num_hops() const { return static_cast<int64_t>(hops_.size()); }
  int64_t num_moments() const { return num_moments_; }
  /// Residuals of the unit that encodes keep: some of 0, 1, ..., num_residuals() - 1.
  int64_t num_residuals() const { return static_cast<int64_t>(residual_.size()); }
  bool has_residual(int64_t nth) const { return residual_[static_cast<size_t>(nth)] >= 0; }
  /// Updates after which it becomes 0; 0: never.
  int64_t residual_ends(int64_t nth) const;
  /// The ranks of one replica: all, without local steps.
  int replica_group() const { return replica_; }
  int world_group() const { return world_; }
  int hop_group(int64_t hop) const { return hops_.at(static_cast<size_t>(hop)); }
  /// Whose parts the optimizer's shards are; of one rank when nothing is split.
  int inner_group() const { return inner_; }
  int across_group() const { return across_; }
  int secondary_group() const { return secondary_; }

 private:
  struct UnitClass {
    std::string name;
    int64_t elements = 0;
    int64_t first_unit = 0;
    int64_t count = 0;
  };
  /// How an array of a class is declared.
  struct Form {
    program::Partition partition;
    int group = -1;
    Dtype dtype = Dtype::kFloat32;
  };
  static constexpr size_t kNumValues = 17;
  static size_t index_of(UnitValue value) { return static_cast<size_t>(value); }

  void classify(int64_t unit, const UnitShape& shape);
  void declare_groups(const Mesh& mesh, const Cluster& cluster);
  /// What the arrays of a unit value are called and what they are.
  struct Naming {
    std::string letter;
    program::Lifetime lifetime = program::Lifetime::kTransient;
    program::Category category = program::Category::kBuffers;
    std::string state = {};  // of its address
    bool by_sender = false;
  };
  /// Adds one array per class, `form(elements)` or `form(class)` each; returns the index of the
  /// first.
  template <class FormOf>
  int declare(const Naming& naming, const FormOf& form);
  Form numbers(int64_t elements, int64_t span, int group, Dtype dtype) const;
  int group_of_span(int64_t span) const;
  program::Partition split(int64_t elements, int64_t span) const;
  PieceFormat pieces(const codec::CodecSpec& codec, const UnitClass& units,
                     const program::Partition& partition, int group) const;
  PieceFormat weight_pieces_of(const UnitClass& units) const;
  PieceFormat secondary_pieces_of(const UnitClass& units) const;
  bool equal_layers(const UnitClass& units) const;
  /// Adds transient arrays of what `form` says of a unit, one per class; one per unit where their
  /// layers differ. [unit] where it is.
  std::vector<program::Operand> declare_by_layers(const std::string& letter,
                                                  const std::function<Form(int64_t)>& form);
  std::vector<program::Operand> declare_pieces(const std::string& letter, int64_t hop);
  void declare_low_rank();
  void declare_residuals();
  static Naming residual_naming(int64_t nth);
  void declare_second_residual(int64_t nth);
  const UnitClass& class_of(int64_t unit) const { return classes_[place_[unit].first]; }
  int64_t elements_of(int64_t unit) const { return class_of(unit).elements; }

  program::Program& program_;
  const ModelShape& shape_;
  const Placement& placement_;
  Types types_;
  std::vector<UnitClass> classes_;
  std::vector<std::pair<int, int64_t>> place_;  // unit -> (class, index)
  std::vector<int> hops_;                       // groups
  bool local_steps_ = false;                    // the state is a replica's
  int world_ = -1, replica_ = -1, inner_ = -1, across_ = -1, across_nested_ = -1, secondary_ = -1;
  int64_t num_moments_ = 0;
  std::vector<int> first_ = std::vector<int>(kNumValues, -1);   // [UnitValue] first array
  std::vector<std::vector<program::Operand>> sent_, received_;  // [hop][unit]
  std::vector<program::Operand> left_, right_;                  // [unit] factors
  std::vector<int> residual_;                                   // [hop]
};

}  // namespace strait::strategy
