// Peak memory of a program from the lifetimes of its values. The runtime's pool agrees (within 5 %,
// and exactly when no executor takes memory of its own).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "strait/program/program.h"

namespace strait::program {

/// Bytes by category at the moment of the highest total (resident values included).
struct MemoryUse {
  int64_t weights = 0, secondary = 0, gradients = 0, optimizer = 0, activations = 0, buffers = 0;
  int64_t host = 0;  // of them on Tier::kHost; the others lie where the rank computes
  int64_t total() const {
    return weights + secondary + gradients + optimizer + activations + buffers;
  }
};

/// State that exists between programs.
MemoryUse resident_memory(const Program& program, int64_t rank);

/// Highest total over the program. A value is allocated when the op that first writes it is issued;
/// an op's workspace, and what its executor takes of a library, count as buffers while it runs. A
/// `free` releases at once when every earlier op that touches the value is known to have ended
/// (lifetime.h): it ran inline, or an inline op has since waited for it or for a later op on its
/// stream. Otherwise it releases as soon as an inline op does so, for example by naming the value
/// in `waits`, or at the end. Cost: O(instances).
MemoryUse peak_memory(const Program& program, int64_t rank);

/// Of the rank of each class that holds most, its first.
std::vector<MemoryUse> peak_memories(std::span<const Program> classes);
/// Position of the one with the highest total. Precondition: there is one.
size_t largest(const std::vector<MemoryUse>& classes);

}  // namespace strait::program
