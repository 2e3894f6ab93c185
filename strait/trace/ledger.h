// The honest ledger: what left a rank, by operation, level and codec, counted where buffers meet
// the transport. It never reads a program's own figures.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace strait {

/// One row: bytes that one kind of operation sent over one level.
struct Traffic {
  std::string operation;  // "all-gather", ...
  int64_t level = 0;      // index into Cluster::levels
  std::string codec = "none";
  int64_t payload_bytes = 0;
  int64_t metadata_bytes = 0;
  int64_t count = 0;  // operations that sent at least one byte on this level
};

/// Which step started a transfer, and whether it may be under way when that step has ended.
struct Started {
  int64_t step = -1;
  bool outlives = false;
  auto operator<=>(const Started&) const = default;
};

/// Counts per rank. Not thread-safe: one ledger per rank and worker thread, merged afterwards.
class Ledger {
 public:
  /// Adds to the row of its operation, level and codec.
  void add(const Traffic& traffic, const Started& started = {});
  /// Of bytes added, so many left the host over a network.
  void add_network(int64_t bytes) { network_bytes_ += bytes; }
  void merge(const Ledger& other);
  void clear() { *this = Ledger(); }
  /// Moves into `ended` what steps up to `step` have started, and of what outlives its step that of
  /// steps up to `outlived`: transfers that have all ended there, so that a rank reads the same
  /// however fast it is. Bytes of the network move with the first call.
  void take(int64_t step, int64_t outlived, Ledger& ended);
  std::vector<Traffic> rows() const;
  /// Payload bytes over a level, all operations.
  int64_t payload_bytes(int64_t level) const;
  int64_t metadata_bytes(int64_t level) const;
  /// Payload and metadata over all levels, and what of it crossed a network.
  int64_t bytes() const;
  int64_t network_bytes() const { return network_bytes_; }

 private:
  struct Counts {
    int64_t payload_bytes = 0, metadata_bytes = 0, count = 0;
  };
  std::map<std::tuple<std::string, int64_t, std::string, Started>, Counts> rows_;
  int64_t network_bytes_ = 0;
};

}  // namespace strait
