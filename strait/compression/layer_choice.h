// One compression setting for each layer, instead of one for all: the fewest bytes at no more error
// than a known-good uniform setting. Source: Alimohammadi et al., L-GreCo (arXiv 2210.17357). Its
// published program cannot return the uniform setting, because errors are rounded up against a
// budget that this setting uses up; here that setting is always a candidate of the whole.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace strait::compression {

/// What one setting makes of one layer.
struct Candidate {
  int64_t bytes = 0;
  double error = 0.0;  // norm of what is lost; any unit, the same for all layers
};

struct LayerCandidates {
  std::vector<Candidate> candidates;  // at least 1, in any order
  size_t reference = 0;               // the uniform setting among them
};

struct LayerChoiceOptions {
  double alpha = 1.0;           // budget = alpha * the sum of the references' errors
  int64_t error_steps = 10000;  // into which the budget is divided
};

struct LayerChoice {
  std::vector<size_t> chosen;  // index of a candidate, per layer
  int64_t bytes = 0;
  double error = 0.0;  // summed in the order of the layers
};

/// The choice of least bytes whose errors, each rounded up to whole steps, fit the budget; never
/// more bytes than the uniform setting (alpha >= 1) or than the choice of least errors, where these
/// fit. Then error <= alpha * the references' errors, both summed in fp64 in layer order. Where no
/// choice fits, the one of least errors.
/// Rounding costs at most one step per layer. The same input gives the same choice on every rank.
/// InternalError for layers without candidates, negative bytes, errors or alpha that are not finite
/// or negative, error_steps < 1.
/// Cost: layers x candidates x error_steps additions, 8 layers x error_steps bytes of memory.
LayerChoice choose_per_layer(std::span<const LayerCandidates> layers,
                             const LayerChoiceOptions& options = {});

}  // namespace strait::compression
