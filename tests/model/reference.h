// The families once more, in LibTorch operators in fp64, for the tests: plain, with full score
// matrices, repeated keys and values, and full logits. Shares nothing with the blocks but names,
// shapes and the definition of the dropout streams.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "strait/model/block.h"

namespace strait::model {

/// What a reference run depends on.
struct ReferenceInput {
  std::string family = "gpt2";
  ShapeOptions options;
  int64_t vocabulary = 0, batch = 0, tokens = 0;
  uint64_t seed = 0;
  bool training = true;
  std::vector<int32_t> inputs, targets, starts;  // starts empty: one document
  std::vector<int64_t> sequences;
};

using Parameters = std::map<std::string, at::Tensor>;

/// Leaves (requires_grad) of the flat fp64 units.
Parameters reference_parameters(const ModelShape& shape,
                                const std::vector<std::vector<double>>& units);

/// x [B, H, T, D] with RoPE: pairs (i, i + D / 2) as complex numbers times exp(i position
/// frequency).
at::Tensor reference_rope(const RopeOptions& rope, const at::Tensor& x);

at::Tensor reference_embedding(const ReferenceInput& input, const Parameters& parameters);
/// `block` is the index in the chain: layer + 1.
at::Tensor reference_transformer(const ReferenceInput& input, const Parameters& parameters,
                                 int64_t block, const at::Tensor& x);
at::Tensor reference_logits(const ReferenceInput& input, const Parameters& parameters,
                            const at::Tensor& x);
/// Sum of the counted token losses.
at::Tensor reference_loss(const ReferenceInput& input, const Parameters& parameters,
                          const at::Tensor& x);
at::Tensor reference_model_loss(const ReferenceInput& input, const Parameters& parameters);

/// Gradients of the unit, laid out flat; zeros where a parameter has none.
std::vector<double> flat_gradient(const UnitShape& unit, const Parameters& parameters);

}  // namespace strait::model
