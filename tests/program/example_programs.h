// Legal programs like those of docs/programs.md, small enough to be broken one operation at a time.
#pragma once

#include <vector>

#include "tests/program/program_builder.h"

namespace strait::program {

/// Weights, gradients and optimizer split over the world: gathers one block ahead, reductions on
/// their own lane, micro-batches, a norm that all ranks agree on, an update.
inline std::vector<Program> split_program(int64_t ranks, int64_t blocks, int64_t micro_batches) {
  ProgramBuilder b(ranks);
  const int w = b.array("w", blocks, Lifetime::kResident, 10, 0);
  const int g = b.array("g", blocks, Lifetime::kResident, 10, 0);
  const int norm = b.array("norm", 1, Lifetime::kResident, 4);
  const int gathered = b.array("W", blocks, Lifetime::kTransient, 10);
  const int full = b.array("G", blocks, Lifetime::kTransient, 10);
  const int x = b.array("x", blocks + 1, Lifetime::kTransient, 6);
  const int d = b.array("d", blocks + 1, Lifetime::kTransient, 6);
  b.repeat("a", 0, micro_batches);
  b.touch({}, {at(x, 0)});
  b.add(OpKind::kAllGather, {at(w, 0)}, {at(gathered, 0)}, 1);
  int i = b.repeat("i", 0, blocks - 1);
  b.add(OpKind::kAllGather, {at(w, 1, i)}, {at(gathered, 1, i)}, 1).waits = {at(gathered, -1, i)};
  b.touch({at(x, 0, i), at(gathered, 0, i)}, {at(x, 1, i)});
  b.free(at(gathered, 0, i));
  b.end();
  b.touch({at(x, blocks - 1), at(gathered, blocks - 1)}, {at(x, blocks)});
  b.touch({at(x, blocks)}, {at(d, blocks)});
  b.free(at(x, blocks));
  b.free(at(gathered, blocks - 1));
  i = b.repeat("i", blocks - 1, blocks, -1);
  b.add(OpKind::kAllGather, {at(w, 0, i)}, {at(gathered, 0, i)}, 1);
  b.touch({at(x, 0, i), at(d, 1, i), at(gathered, 0, i)}, {at(d, 0, i), at(full, 0, i)}).waits = {
      at(full, 2, i)};
  b.free(at(gathered, 0, i));
  b.free(at(x, 0, i));
  b.free(at(d, 1, i));
  b.add(OpKind::kReduceScatter, {at(full, 0, i)}, {added(at(g, 0, i))}, 2);
  b.free(at(full, 0, i));
  b.end();
  b.free(at(d, 0));
  b.end();
  i = b.repeat("u", 0, blocks);
  b.touch({at(g, 0, i)}, {updated(at(norm))});
  b.end();
  b.add(OpKind::kAllReduce, {at(norm)}, {at(norm)}, 2);
  i = b.repeat("u", 0, blocks);
  b.touch({at(norm)}, {at(w, 0, i), updated(at(g, 0, i))});
  b.end();
  return {b.take()};
}

/// Two stages, each on `replicas` ranks: activations go right, gradients left, gradients are summed
/// over the replicas, a norm over the world. Ranks 0..replicas-1 are the first stage.
inline std::vector<Program> stage_program(int64_t replicas, int64_t micro_batches) {
  std::vector<Program> classes;
  for (int64_t stage = 0; stage < 2; ++stage) {
    std::vector<int64_t> members;
    for (int64_t r = 0; r < replicas; ++r) members.push_back(stage * replicas + r);
    ProgramBuilder b(2 * replicas, members);
    const int chain = b.group("chain", 2, replicas);
    const int data = b.group("data", replicas, 1);
    const int g = b.array("g", 1, Lifetime::kResident, 8);
    const int norm = b.array("norm", 1, Lifetime::kResident, 1);
    const int x = b.array("x", micro_batches, Lifetime::kTransient, 5);
    const int d = b.array("d", micro_batches, Lifetime::kTransient, 5);
    const auto forward = [&](int64_t k) {
      b.touch({}, {at(x, k)});
      b.send(at(x, k), 1, 1, chain);
    };
    const auto backward = [&](int64_t k) {
      b.receive(at(d, k), 0 + 1, 2, chain);
      b.touch({at(d, k), at(x, k)}, {updated(at(g))});
      b.free(at(x, k));
      b.free(at(d, k));
    };
    if (stage == 0) {
      forward(0);
      for (int64_t k = 1; k < micro_batches; ++k) {
        forward(k);
        backward(k - 1);
      }
      backward(micro_batches - 1);
    } else {
      const int k = b.repeat("k", 0, micro_batches);
      b.receive(at(x, 0, k), 0, 1, chain);
      b.touch({at(x, 0, k)}, {at(d, 0, k), updated(at(g))});
      b.free(at(x, 0, k));
      b.send(at(d, 0, k), 0, 2, chain);
      b.free(at(d, 0, k));
      b.end();
    }
    b.add(OpKind::kAllReduce, {at(g)}, {at(g)}, 3, data);
    b.touch({at(g)}, {at(norm)});
    b.add(OpKind::kAllReduce, {at(norm)}, {at(norm)}, 3);
    b.touch({at(norm)}, {updated(at(g))});
    classes.push_back(b.take());
  }
  return classes;
}

/// A mean that was launched a round ago is used, then the next one is launched and left under way.
inline std::vector<Program> carry_program(int64_t ranks) {
  ProgramBuilder b(ranks);
  const int master = b.array("master", 1, Lifetime::kResident, 12);
  const int snap = b.array("snap", 1, Lifetime::kCarry, 12);
  const int mean = b.array("mean", 1, Lifetime::kCarry, 12);
  const int scratch = b.array("scratch", 1, Lifetime::kTransient, 12);
  b.add(OpKind::kCopy, {at(master)}, {at(scratch)});
  b.touch({at(mean), at(scratch)}, {at(master)});
  b.free(at(scratch));
  b.add(OpKind::kCopy, {at(master)}, {at(snap)});
  b.add(OpKind::kAllReduce, {at(snap)}, {at(mean)}, 1);
  return {b.take()};
}

}  // namespace strait::program
