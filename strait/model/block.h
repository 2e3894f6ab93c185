// What the runtime needs of a model: each block's compute on local buffers. Blocks know no ranks
// and call no collectives. Hand-written blocks run without autograd; AutogradBlock wraps a LibTorch
// module.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/shape/element_runs.h"
#include "strait/shape/shape.h"

namespace strait::model {

/// A micro-batch on the host. Rows are sequences; `targets` may hold -1 = not counted.
struct Batch {
  int64_t batch = 0, tokens = 0;     // B sequences of T tokens
  const int32_t* inputs = nullptr;   // [B, T]
  const int32_t* targets = nullptr;  // [B, T]
  const int32_t* document_starts =
      nullptr;                         // [B, T] first position of the token's document, or null
  const int64_t* sequences = nullptr;  // [B] index of the sequence in the run, for random streams
};

/// UserError naming the first token outside the vocabulary. The batch lies in host memory.
void check_tokens(const Batch& batch, int64_t vocabulary);
/// The same for targets, where -1 is not counted.
void check_targets(const Batch& batch, int64_t vocabulary);

/// Everything that decides the numbers besides the buffers.
struct Settings {
  Dtype dtype = Dtype::kFloat32;  // fp32, fp64 or bf16
  int threads = 1;                // compute threads of this rank
  uint64_t seed = 0;              // dropout streams: (seed, block, sequence, element)
  bool training = true;           // dropout acts
  double loss_scale = 1.0;        // gradients are those of loss_scale * (sum of token losses)
};

/// Buffers of one call. Null = not part of this call. Elements have Settings::dtype, but for bf16
/// those marked * have fp32: gradients of weights are made and summed up in fp32, logits leave in
/// fp32. Every sum inside a block (products, norms, softmax, loss) is fp32 then; saved, bundle and
/// workspace hold statistics and norm gradients in fp32, activations and their gradients in bf16,
/// each rounded once where it is written. `weights` are bf16 throughout, vectors included. In
/// place: `output` may not alias `input`; `input_gradient` may equal `output_gradient`.
struct Call {
  const Settings* settings = nullptr;
  const Batch* batch = nullptr;
  const void* weights = nullptr;          // flat unit
  const void* input = nullptr;            // [B, T, C]
  void* output = nullptr;                 // [B, T, C]
  void* saved = nullptr;                  // BlockSizes::saved_bytes; null = keep nothing
  const void* output_gradient = nullptr;  // [B, T, C]
  void* input_gradient = nullptr;         // [B, T, C]
  void* gradient = nullptr;               // * flat unit
  bool accumulate = false;        // add to `gradient` instead of overwriting the block's parameters
  void* bundle = nullptr;         // BlockSizes::bundle_bytes
  void* workspace = nullptr;      // forward_ or backward_workspace_bytes
  double* loss_sum = nullptr;     // head: += sum of token losses (unscaled), in target order
  int64_t* loss_count = nullptr;  // head: += counted targets
  void* cache = nullptr;          // key/value cache of this block (cache_bytes)
  int64_t cache_capacity = 0;     // tokens per sequence that the cache holds
  int64_t position = 0;           // cached forward: tokens already in the cache
  void* logits = nullptr;         // * head, generation: [B, vocabulary] of the last position
};

/// One block of the chain. Thread-safe: all state is in the call.
class Block {
 public:
  virtual ~Block() = default;
  virtual void forward(const Call& call, int segment_begin, int segment_end) const = 0;
  virtual void backward_input(const Call& call, int segment_begin, int segment_end) const = 0;
  virtual void backward_weight(const Call& call, int segment_begin, int segment_end) const = 0;
  /// Input and weight gradients together; the bundle lies in the workspace.
  virtual void backward(const Call& call) const = 0;
  /// Head only: loss and both gradients at once, logits in chunks of rows. With gradient == nullptr
  /// the loss alone.
  virtual void forward_backward(const Call& call) const = 0;
  /// Forward of call.batch's tokens behind `position` cached ones.
  virtual void forward_cached(const Call& call) const = 0;
};

/// Executes a shape: one Block per BlockShape.
class Model {
 public:
  explicit Model(ModelShape shape, Dtype dtype);
  const ModelShape& shape() const { return shape_; }
  const Block& block(int64_t index) const { return *blocks_[index]; }
  /// Replaces a block, e.g. by an AutogradBlock.
  void set_block(int64_t index, std::unique_ptr<Block> block) { blocks_[index] = std::move(block); }

 private:
  ModelShape shape_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

/// Initial values of the elements of `unit` behind `runs`, packed at `destination`. They depend
/// only on (seed, parameter name, element), so those of a part are a slice of those of the whole.
void initialize(const UnitShape& unit, uint64_t seed, Dtype dtype, const ElementRuns& runs,
                void* destination);

}  // namespace strait::model
