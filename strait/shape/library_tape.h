// A LibTorch that counts and computes nothing: the operations of a block, written down as its code
// has them, tell what memory tensors, saved values and gradients take, and how much work it is.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strait/base/library_work.h"

namespace strait {

/// What a matrix and its vector of biases cost a backward beside products: views of weights and of
/// gradients, clearing and adding.
inline constexpr double kCallsOfLeaf = 8;

/// Records operations on one thread. Results are freed when nobody holds them: neither the code
/// that made them nor, while recording, what the backward pass needs.
class LibraryTape {
  class Storage;

 public:
  /// Copies share their memory.
  class Tensor {
   public:
    int64_t bytes() const { return bytes_; }
    bool is_dense() const { return dense_; }

   private:
    friend class LibraryTape;
    std::shared_ptr<Storage> storage_;  // null: memory of others
    int64_t bytes_ = 0;
    int node_ = -1;  // that made it; -1: no gradient is asked of it
    bool dense_ = true;
  };

  /// How a gradient comes to an input.
  enum class Gradient : uint8_t {
    kOwn,     // as a tensor of its own
    kPassed,  // as it is
    kPart,    // as a part of it where that lies
    kPadded,  // among zeros: of a slice
    kSmall    // too small to count: of what is spread over maps
  };

  struct Operation {
    int64_t bytes = 0;  // of the result
    std::vector<Tensor> inputs = {};
    std::vector<Gradient> gradients = {};  // by input; kOwn where none is given
    std::vector<Tensor> saved = {};
    bool view = false;         // of the first input: the result has no memory of its own
    bool dense = true;         // the result lies in one piece
    bool wants_dense = false;  // copies a gradient that does not
    bool saves_result = false;
    int64_t scratch = 0, backward_scratch = 0;  // beside result and gradients
    double activations = 0;                     // both ways each
    bool product = false;                       // what it passes is in the rate of products
    int64_t calls = 1;                          // both ways each
  };

  Tensor run(const Operation& operation);
  /// Memory that code takes and frees at once.
  void take(int64_t bytes);

  /// Of memory of others, or (fresh) of its own.
  Tensor tensor(int64_t bytes, bool fresh = false);
  /// A leaf: its gradient is asked for.
  Tensor leaf(Tensor tensor);
  /// While set, operations on what a gradient is asked of are recorded.
  void record(bool recording) { recording_ = recording; }
  /// What backward() leaves are gradients of leaves; they are held until the tape ends. `result` is
  /// given up.
  void backward(Tensor result);

  const LibraryWork& work() const { return work_; }

 private:
  struct Node {
    Operation operation;  // of its inputs and saved tensors those that it holds
    std::vector<int> inputs;
    std::vector<int64_t> input_bytes;
    bool is_leaf = false;
  };
  void change(int64_t bytes);
  Tensor fresh(int64_t bytes);
  void add(Tensor& sum, Tensor gradient);

  std::shared_ptr<int64_t> live_ = std::make_shared<int64_t>(0);
  bool recording_ = false;
  std::vector<Node> nodes_;
  std::vector<Tensor> gradients_;  // by node
  LibraryWork work_;
};

}  // namespace strait
