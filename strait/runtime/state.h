// The resident values of one rank: what exists between programs, by array name.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "strait/comm/communicator.h"
#include "strait/memory/pool.h"
#include "strait/program/program.h"

namespace strait::runtime {

/// Who must reach the buffers of an array.
memory::Reach reach_of(const program::ValueArray& array, bool transferred);

/// Transfers that an earlier program has left under way on a value: they write it, or read it for a
/// carry that they write. Several may read at once.
struct Carries {
  std::vector<comm::Ticket> tickets;
  bool under_way() const {
    return std::ranges::any_of(tickets, [](const comm::Ticket& one) { return !one.done(); });
  }
  /// Waits until none is under way, and forgets how they ended.
  void settle() noexcept;
};

/// One resident array: a buffer per index, and what is still under way there.
struct ResidentArray {
  int64_t bytes = 0;  // of one value on this rank
  program::Tier tier = program::Tier::kDevice;
  std::vector<void*> buffers;    // by index; nullptr when bytes == 0
  std::vector<Carries> carries;  // by index
};

/// Owns the buffers through a pool. Programs that name the same array share it. Not thread-safe.
class State {
 public:
  State(memory::Pool& pool, int64_t rank) : pool_(pool), rank_(rank) {}
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// Creates the resident arrays of `program` that do not exist yet, filled with zeros.
  /// InternalError when one exists with another size or count.
  void bind(const program::Program& program);
  ResidentArray& array(const std::string& name);
  /// The device that holds an array's buffers; null = plain memory.
  tensor::Device* device_of(const ResidentArray& array) const;
  /// Copies `bytes` bytes of the first value to host memory, from wherever the state lives; and
  /// back.
  void read(const std::string& name, void* to, int64_t bytes);
  void write(const std::string& name, const void* from, int64_t bytes);
  template <class T, size_t kCount>
  std::array<T, kCount> read(const std::string& name) {
    std::array<T, kCount> values;
    read(name, values.data(), static_cast<int64_t>(sizeof(values)));
    return values;
  }
  bool has(const std::string& name) const { return arrays_.contains(name); }
  /// Frees all resident arrays whose name starts with `prefix`, once no carry touches them any
  /// longer, whatever became of it: who fails aborts the world first.
  void release(const std::string& prefix);
  /// Waits for all carries. Afterwards every resident value may be read.
  void drain();
  int64_t rank() const { return rank_; }

 private:
  memory::Pool& pool_;
  int64_t rank_;
  std::map<std::string, ResidentArray> arrays_;
};

}  // namespace strait::runtime
