// What a rank computes besides the blocks of its model, on plain memory by our own kernels or on a
// device in ATen operators: optimizers, norms, codecs, and scalars that live among the values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "strait/codec/codec.h"
#include "strait/optim/options.h"
#include "strait/optim/outer.h"

namespace strait::tensor {
class Device;
}

namespace strait::device {

/// One update of `elements` parameters of fp32 or fp64; states are the moments in the optimizer's
/// order. `rounded`: where the new fp32 weights go in bf16, too; null: nowhere.
struct UpdateCall {
  const OptimizerOptions& options;
  double learning_rate = 0, weight_decay = 0;
  double gradient_scale = 1;  // clip factor
  int64_t step = 1;           // 1-based count of updates, this one included
  codec::Values weights;
  codec::ConstValues gradient;
  void* states[2] = {nullptr, nullptr};
  void* rounded = nullptr;
};

/// A step of the outer optimizer (optim/outer.h) on equally many elements; `sent` and `fresh` may
/// be empty.
struct OuterCall {
  const optim::OuterUpdate& update;
  codec::ConstValues sum, sent, fresh;
  codec::Values velocity, outer, local;
};

/// What is encoded, the residual of error feedback that goes with it (empty = none), and what a
/// codec draws from.
struct EncodeCall {
  const codec::CodecSpec& spec;
  codec::ConstValues source;
  std::span<float> residual = {};
  codec::Draw draw = {};
};

/// Pointers to values are of the memory that the arithmetic was made for. Scalars are fp64. One per
/// rank; not thread-safe. Errors as the functions of codec/ and optim/; codecs that a device lacks:
/// UserError with the nearest that it has.
class Arithmetic {
 public:
  virtual ~Arithmetic() = default;
  virtual void put(const void* host, void* value, int64_t bytes) = 0;
  /// On a device it waits for all work before.
  virtual void get(const void* value, void* host, int64_t bytes) = 0;
  virtual void fill_zero(void* value, int64_t bytes) = 0;
  virtual void add(double amount, double* scalar) = 0;
  virtual void add_squared_norm(const codec::ConstValues& values, double* scalar) = 0;
  virtual void update(const UpdateCall& call) = 0;
  /// out = a - b, all of out's type.
  virtual void subtract(const codec::ConstValues& a, const codec::ConstValues& b,
                        const codec::Values& out) = 0;
  virtual void scale(double factor, const codec::Values& values) = 0;
  virtual void outer_step(const OuterCall& call) = 0;
  virtual void exchange(const codec::Values& a, const codec::Values& b) = 0;
  /// Adds the number of elements that are not finite to `not_finite` unless it is null.
  virtual void encode(const EncodeCall& call, std::span<uint8_t> encoded, double* not_finite) = 0;
  /// out = or += the decoded piece.
  virtual void decode(const codec::CodecSpec& spec, std::span<const uint8_t> encoded,
                      const codec::Values& out, bool add) = 0;
  virtual void decode_sum(const codec::Pieces& from, const codec::Values& out) = 0;
};

/// `device` null: plain memory, with `threads` threads. The device outlives the arithmetic.
std::unique_ptr<Arithmetic> make_arithmetic(tensor::Device* device, int threads);

}  // namespace strait::device
