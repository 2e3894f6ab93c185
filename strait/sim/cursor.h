// Pulls the executed operations of a program one by one, where for_each_instance pushes them: ranks
// that are replayed side by side take turns.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "strait/program/program.h"

namespace strait::sim {

/// The program must outlive it. O(depth of loops) memory.
class Cursor {
 public:
  explicit Cursor(const program::Program& program) : program_(program) { rewind(); }

  void rewind() {
    program::begin_loops(program_, {}, loops_);
    frames_ = {{&program_.body, nullptr}};
  }
  /// The next operation in program order, null after the last.
  const program::Op* next() {
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      if (frame.at == frame.nodes->size()) {
        if (!again(frame)) frames_.pop_back();
        continue;
      }
      const program::Node& node = (*frame.nodes)[frame.at++];
      if (const program::Op* op = std::get_if<program::Op>(&node)) return op;
      enter(std::get<program::Repeat>(node));
    }
    return nullptr;
  }
  /// Loop variables of that operation, by loop id.
  const program::Loops& loops() const { return loops_; }

 private:
  struct Frame {
    const std::vector<program::Node>* nodes;
    const program::Repeat* repeat;  // null: the program's own body
    size_t at = 0;
    int64_t iteration = 0;
  };
  void enter(const program::Repeat& repeat) {
    if (repeat.count <= 0) return;
    loops_[repeat.loop] = repeat.first;
    frames_.push_back({&repeat.body, &repeat});
  }
  bool again(Frame& frame) {
    if (frame.repeat == nullptr || ++frame.iteration == frame.repeat->count) return false;
    loops_[frame.repeat->loop] = frame.repeat->first + frame.iteration * frame.repeat->step;
    frame.at = 0;
    return true;
  }

  const program::Program& program_;
  program::Loops loops_;
  std::vector<Frame> frames_;
};

}  // namespace strait::sim
