// What a model is without tensors: blocks -> segments -> parameters, floating-point operations and
// bytes. Builders, cost and sim read it; model/ executes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/base/library_work.h"
#include "strait/shape/axis_split.h"
#include "strait/shape/options.h"

namespace strait {

/// Initial values. They depend only on (seed, parameter name, element), never on layout.
enum class Initial : uint8_t { kZeros, kOnes, kNormal };

/// One tensor inside a unit. `offset` counts elements from the start of the unit's flat buffer.
struct ParameterShape {
  std::string name;           // e.g. "blocks.3.attention.qkv.weight"
  std::vector<int64_t> dims;  // row-major; weights of linear layers are [out, in]
  int64_t offset = 0;
  bool weight_decay = false;  // matrices and embeddings
  Initial initial = Initial::kZeros;
  double standard_deviation = 0.0;
  ParameterSplit split = {};  // over the axes x and y of the mesh
  int64_t elements() const;
};

/// A contiguous range of a unit with one weight-decay flag, whose parameters are split over the
/// same axes.
struct Section {
  int64_t begin = 0, end = 0;  // elements
  bool weight_decay = false;
  bool split_x = false, split_y = false;  // else every rank of the axis holds the same values
};

/// The parameters that move together: the flat buffer of one block. Decayed parameters come
/// first; among equals, on ranks of x or y, those that are cut over more.
struct UnitShape {
  std::string name;  // "embedding", "blocks.0", "head"
  std::vector<ParameterShape> parameters;
  std::vector<Section> sections;
  int64_t elements = 0;
  const ParameterShape& parameter(const std::string& full_name) const;
};

enum class BlockKind : uint8_t { kEmbedding, kTransformer, kHead, kCustom };

/// A piece of a block as Block::forward and its like number them: the fused form, between whose
/// pieces no collective stands. segment.h cuts a transformer block wherever one may.
struct SegmentShape {
  std::string name;  // "norm+qkv", "attention+output", "norm+up", "down"
};

/// One block of the chain. Blocks of equal `signature` have equal sizes and roll into one Repeat.
struct BlockShape {
  std::string name;
  BlockKind kind = BlockKind::kTransformer;
  int64_t unit = 0;  // index into ModelShape::units (tied weights: one unit, two blocks)
  std::string signature;
  std::vector<SegmentShape> segments;
};

/// Sizes of one block for a micro-batch; all in bytes or floating-point operations of one rank.
struct BlockSizes {
  int64_t input_bytes = 0;   // activation that enters (0 for the embedding)
  int64_t output_bytes = 0;  // activation that leaves (0 for the head)
  int64_t saved_bytes = 0;   // kept from forward to backward, beside the input
  int64_t forward_workspace_bytes = 0;
  int64_t backward_workspace_bytes = 0;  // of backward (input and weight together)
  int64_t bundle_bytes = 0;    // handed from backward_input to backward_weight when they are split
  double forward_flops = 0;    // multiply-adds count two; attention counted with its causal half
  double backward_flops = 0;   // input and weight together
  double attention_flops = 0;  // of the forward; the backward has twice as many
  LibraryWork forward_library, backward_library;  // of blocks that LibTorch runs, beside all that
};

/// Which linear layers have a bias where ShapeOptions::bias is true.
enum class Biases : uint8_t { kAll, kQkv, kNone };

/// RMSNorm of queries and keys before RoPE: none, of each head with one weight for all heads, or of
/// all heads together.
enum class QueryKeyNorm : uint8_t { kNone, kHead, kWidth };

/// What the blocks of a family are made of; all families share one chain and one transformer block.
/// What differs from block to block is in layer_form.
struct BlockStyle {
  bool rms_norm = false;       // RMSNorm (Zhang & Sennrich 2019), otherwise LayerNorm
  bool rotary = false;         // RoPE on queries and keys, otherwise a learned position embedding
  bool gated = false;          // SwiGLU (Shazeer 2020), otherwise GELU in its tanh form
  bool norm_before = true;     // norms of what enters attention and MLP
  bool norm_behind = false;    // RMSNorm of what leaves them, before the residual stream is added
  bool windows = false;        // ShapeOptions::window may be set
  bool alternates = false;     // ... and window_pattern
  bool local_rope = false;     // ... and RopeOptions::local_theta
  bool query_scalar = false;   // ShapeOptions::query_scalar may be set
  bool score_cap = false;      // ... score_cap
  bool logit_cap = false;      // ... logit_cap
  bool norm_from_one = false;  // norms multiply by 1 + weight, and weights begin at 0
  bool gelu_gate = false;      // GeGLU in place of SwiGLU
  bool scaled_embedding = false;  // rows of tokens times the root of the width
  Biases biases = Biases::kAll;
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
};
/// The row of a family: a model family is this and its presets. UserError (with the key) for one
/// that is not known. Family modules has no row and gets the fields of the first.
BlockStyle block_style(const std::string& family);
/// The rows; without modules.
const std::vector<std::string>& family_names();
bool is_family(const std::string& name);
/// Throws UserError (with the key) for sizes and biases that the family does not have.
void check_family(const ShapeOptions& options, const std::string& family);

/// How attention reaches the keys of other ranks that share a sequence: all of them are gathered
/// before it; or they come by, those of one rank at a time; or each rank attends for some heads,
/// and where fewer ranks exchange heads than share sequences, the keys of these come by.
enum class SequenceEngine : uint8_t { kGathered, kRing, kHeads };

struct ModelShape {
  std::string family;
  BlockStyle style;
  ShapeOptions options;  // of the whole model, also where units hold one rank's part
  int64_t vocabulary = 0;
  int64_t x = 1, y = 1;  // ranks of mesh axes x and y that share each block: local_shape in split.h
  int64_t sequence = 1;  // ranks that share every sequence
  SequenceEngine engine = SequenceEngine::kGathered;  // among these
  /// With kHeads: neighbours of them that exchange heads. Keys travel on rings across such groups.
  int64_t head_ranks = 1;
  bool splits_rows = false;  // ranks of x have some rows each between products (segment.h)
  /// Of the document in which a token stands, on average, as far as operations of attention are
  /// counted; 0: as many as the context, or as the sequence where that is shorter.
  int64_t document_tokens = 0;
  /// Operations of attention of the rank with most over those of the mean: ranks wait for each
  /// other.
  double slowest_attention = 1;
  std::vector<UnitShape> units;
  std::vector<BlockShape> blocks;                        // embedding, layers x transformer, head
  std::shared_ptr<const ModuleChain> modules = nullptr;  // whose blocks are modules
  int64_t parameters() const;                            // elements over all units, tied ones once
};

/// Key/value cache bytes of one transformer block for `batch` sequences of up to `context` tokens.
int64_t cache_bytes(const ModelShape& model, int64_t batch, int64_t context, Dtype dtype);

/// What one transformer block has that others of its chain may have not. It changes no size of
/// memory: blocks that differ in it alone have one signature and roll into one Repeat, in which the
/// number of the block chooses.
struct LayerForm {
  int64_t window = 0;
  RopeOptions rope = {};
};
/// Of block `block` of the chain (the first transformer block is 1).
LayerForm layer_form(const ModelShape& model, int64_t block);

/// What rows of the token embedding are multiplied by; blocks round it to the type of their
/// activations.
double embedding_scale(const ModelShape& model);

/// Keys that a query attends on average, twice: the causal half of `tokens`, less what a window
/// hides.
double attended_tokens(int64_t tokens, int64_t window);
/// The same, as the mean over the blocks of a model: what is done by all of them is exact.
double attended_tokens(int64_t tokens, const ShapeOptions& options);
/// The same where ranks have `tokens` of each sequence.
double attended_tokens(int64_t tokens, const ModelShape& model);

/// Throws UserError (with the key) unless `options` is a shape that `family` can build.
void validate_shape(const ShapeOptions& options, int64_t vocabulary,
                    const std::string& family = "gpt2");

/// The chain of `model.family`; initial values and weight-decay split as nanoGPT: output
/// projections start at 0.02 / sqrt(2 layers). `vocabulary` counts the tokens of the tokenizer;
/// ShapeOptions::vocabulary may add rows that stand for none. Errors as validate_shape.
ModelShape model_shape(const ModelOptions& model, int64_t vocabulary);

/// GPT-2 (Radford et al. 2019): learned positions, LayerNorm, tanh-GELU.
ModelShape gpt2_shape(const ShapeOptions& options, int64_t vocabulary);

/// Llama (Touvron et al. 2023): RoPE, RMSNorm, SwiGLU, grouped key/value heads (Ainslie et al.
/// 2023). attention.qkv holds the rows of queries, keys, values one after the other; a head's pairs
/// are its elements i and i + head_width / 2 (Hugging Face's order). mlp.gate_up holds gate, then
/// up.
ModelShape llama_shape(const ShapeOptions& options, int64_t vocabulary);

/// Sizes of `model.blocks[block]` for `batch` sequences of `tokens` tokens. For the head,
/// forward_workspace is that of the loss alone and of generation, backward_workspace that of the
/// loss with both gradients. forward_workspace_bytes also covers a forward that keeps nothing
/// (saved == nullptr). With x or y > 1 the sizes are those of one rank's part. Kind kCustom has the
/// sizes of `model.modules`; without, none: whoever replaces the block states them. `tokens` are
/// those that this rank has of a sequence; with sequence > 1 a query attends to those of others.
BlockSizes block_sizes(const ModelShape& model, int64_t block, int64_t batch, int64_t tokens,
                       Dtype dtype);

/// Model FLOPs per token of a training step: 6 per parameter that multiplies (token and position
/// embedding look-ups do not, the head does) plus attention with its causal half, 6 L T C. Of the
/// whole model, whatever x and y. Of modules, three times their forward. docs/formulas.md.
double model_flops_per_token(const ModelShape& model, int64_t tokens);

/// Rows of logits that the head holds at a time, so that no full logits tensor exists.
int64_t head_chunk_rows(int64_t vocabulary, int64_t rows);

/// Shape options of a named preset ("nano-char", "gpt2-124m", ... ); UserError names the nearest.
ModelOptions model_preset(const std::string& name);
const std::vector<std::string>& model_preset_names();

}  // namespace strait
