// Runs the blocks of a model on guarded buffers of exactly the sizes that block_sizes states.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "strait/base/bfloat16.h"
#include "strait/base/random.h"
#include "strait/model/block.h"
#include "tests/model/guarded.h"
#include "tests/model/reference.h"

namespace strait::model {

/// A small odd-sized case with random tokens, targets (some not counted) and weights.
struct Case {
  ShapeOptions options{2, 3, 3, 15, 22, 13, true, 0.0, true};
  int64_t vocabulary = 37, batch = 3, tokens = 11;
  bool documents = false;
  std::string family = "gpt2";
  ModelShape shape() const { return model_shape({"", family, options}, vocabulary); }
};
std::ostream& operator<<(std::ostream& out, const Case& test_case);
/// A case of each family beside GPT-2 and Llama, with what sets it apart.
std::vector<Case> family_cases();
ReferenceInput random_input(const Case& test_case, uint64_t seed);
/// Weights far from their initial values, so that every gradient is large enough to compare.
std::vector<std::vector<double>> random_units(const ModelShape& shape, uint64_t seed);
std::vector<double> random_values(int64_t count, uint64_t seed, double scale = 1.0);

/// ||a - b|| / ||b||, and ||a|| where b is 0.
double relative_error(const std::vector<double>& a, const std::vector<double>& b);

template <class T>
std::vector<T> convert(const std::vector<double>& from) {
  std::vector<T> to;
  for (const double value : from) to.push_back(static_cast<T>(value));
  return to;
}
template <class T>
std::vector<double> widen(const T* from, int64_t count) {
  return {from, from + count};
}

template <class T>
class Runner {
 public:
  static constexpr Dtype kDtype = sizeof(T) == 8   ? Dtype::kFloat64
                                  : sizeof(T) == 4 ? Dtype::kFloat32
                                                   : Dtype::kBfloat16;
  Runner(const ModelShape& shape, const ReferenceInput& input,
         const std::vector<std::vector<double>>& units, int threads = 1);

  Call call(int64_t block);
  BlockSizes sizes(int64_t block) const {
    return block_sizes(model.shape(), block, input.batch, input.tokens, settings.dtype);
  }

  struct Backward {
    std::vector<double> input_gradient, unit_gradient;
  };
  /// Output of a forward of `block`; `saved` null keeps nothing. Segment by segment when
  /// `stepwise`.
  std::vector<double> forward(int64_t block, const std::vector<double>& x, Guarded* saved,
                              bool stepwise = false);
  /// Backward behind forward(block, x, saved). `start` fills the unit gradient before.
  struct BackwardOptions {
    bool split = false, stepwise = false, accumulate = false, in_place = false;
    double start = 0.0;
  };
  Backward backward(int64_t block, const std::vector<double>& x, Guarded& saved,
                    const std::vector<double>& dy, BackwardOptions options);
  struct Head {
    double loss = 0;
    int64_t count = 0;
    Backward backward;
  };
  Head head(const std::vector<double>& x, bool gradient, bool accumulate = false,
            double start = 0.0);

  /// Whole step: loss and gradients of all units.
  struct Step {
    double loss = 0;
    std::vector<std::vector<double>> gradients;
  };
  Step step(bool accumulate = false, double start = 0.0);
  Backward tied_embedding(const std::vector<double>& begun, Guarded& saved,
                          const std::vector<double>& dy, bool accumulate);

  Model model;
  ReferenceInput input;
  Settings settings;
  Batch batch;
  std::vector<std::vector<T>> weights;
};

extern template class Runner<float>;
extern template class Runner<double>;
extern template class Runner<Bfloat16>;

}  // namespace strait::model
