// Writes the flight records of this process's ranks into the run folder.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "strait/comm/wait_table.h"
#include "strait/trace/flight_file.h"

namespace strait::train {

/// Thread-safe. Writing never throws: a record that cannot be written is missing.
class FlightDump {
 public:
  /// Removes the records of an earlier process when `fresh`: for one process of the run.
  FlightDump(std::string run_dir, std::string backend, int64_t ranks, bool fresh);

  /// The record of a rank of this process; the row may be null and must live until detach().
  trace::FlightRecord& attach(int64_t rank, const comm::WaitRow* row);
  /// Forgets the rows, whose memory is about to go.
  void detach();

  /// One rank, with the exception that it ends with.
  void write_failed(int64_t rank, const std::exception_ptr& failure);
  /// All attached ranks, or only those without a record of their failure.
  void write_all(const std::string& kind, const std::string& message);

 private:
  struct Rank {
    std::unique_ptr<trace::FlightRecord> record;
    const comm::WaitRow* row = nullptr;
    bool failed = false;
  };
  void write(int64_t rank, const trace::FlightReason& reason, bool kept) noexcept;

  const std::string run_dir_, backend_;
  std::mutex mutex_;
  std::vector<Rank> ranks_;
};

}  // namespace strait::train
