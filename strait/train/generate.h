// Text from a model: one new token at a time behind a key/value cache, by the generation programs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "strait/checkpoint/reader.h"
#include "strait/comm/communicator.h"
#include "strait/execute/environment.h"
#include "strait/memory/pool.h"
#include "strait/model/block.h"
#include "strait/runtime/interpreter.h"
#include "strait/runtime/state.h"
#include "strait/tensor/device.h"

namespace strait::train {

/// How the next token is drawn from the logits.
struct Sampling {
  double temperature = 0.8;  // 0 = the most likely token, ties to the lowest number
  int64_t top_k = 0;         // 0 = all
  double top_p = 1.0;        // smallest set of the most likely of these with this share of theirs
  uint64_t seed = 1337;
  int64_t tokens = 0;  // the first so many may be drawn, rows behind them stand for none; 0 = all
};

/// Draws a token. `draw` numbers the draws of a text: the result is a pure function of its
/// arguments. NonFinite, naming the token, when a logit of one that may be drawn is NaN or
/// +infinity.
int32_t sample_token(std::span<const double> all, const Sampling& sampling, uint64_t draw);

/// A model with its cache for one sequence, on one rank. When the context is full the cache is
/// filled anew from the second half of the text, so that generation goes on.
class Generator {
 public:
  /// In which type, with how many threads and where it computes. `device`: null = plain memory;
  /// outlives this.
  struct Resources {
    Dtype dtype = Dtype::kFloat32;
    int threads = 1;
    tensor::Device* device = nullptr;
  };
  /// `world` has one rank. Weights are loaded from the checkpoint.
  Generator(const ModelShape& shape, const Resources& resources, comm::World& world,
            const checkpoint::CheckpointReader& reader);
  ~Generator();
  /// Feeds tokens behind what was fed before and returns the logits after the last one. UserError
  /// when a token is out of range or the context would overflow.
  std::vector<double> feed(std::span<const int32_t> tokens);
  /// Forgets all tokens.
  void reset() { position_ = 0; }
  int64_t position() const { return position_; }
  int64_t context() const { return model_.shape().options.context; }
  /// Appends `count` tokens to `text` (which holds the prompt, at least one token), calling `each`
  /// for every new one.
  void generate(std::vector<int32_t>& text, int64_t count, const Sampling& sampling,
                const std::function<void(int32_t)>& each);

 private:
  struct Compiled;  // a program and its interpreter
  Compiled& program_for(int64_t tokens);

  Dtype dtype_;
  memory::Pool pool_;
  runtime::State state_;
  Layout layout_;
  model::Model model_;
  std::unique_ptr<device::Arithmetic> arithmetic_;
  execute::Environment environment_;
  runtime::Executors executors_;
  runtime::Site site_;
  std::map<int64_t, std::unique_ptr<Compiled>> programs_;  // by number of new tokens
  int64_t position_ = 0;
};

}  // namespace strait::train
