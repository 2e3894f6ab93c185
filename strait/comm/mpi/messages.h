// Point-to-point messages of one process. MPI is used by one thread at a time
// (MPI_THREAD_SERIALIZED): every call takes the same lock and returns at once, so that no thread
// ever waits inside MPI.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace strait::comm {

/// Keeps every other thread of the process out of MPI: for calls that block, before a world or
/// after its end.
std::unique_lock<std::mutex> lock_mpi();

/// One transfer under way; long ones are several MPI messages.
struct Message {
  std::vector<MPI_Request> requests;
  int64_t peer = 0;      // rank of the world
  int64_t expected = 0;  // bytes to receive; 0 for a send
  int64_t arrived = 0;   // bytes received by those that are done
  int64_t handed = 0;    // bytes given to MPI to send
  bool done = false;
};

/// Thread-safe.
class Messages {
 public:
  /// `communicator`: over all ranks of the world, numbered alike; kept, not freed.
  explicit Messages(MPI_Comm communicator);

  static constexpr int64_t kWhole = int64_t{1} << 30;  // MPI counts are int: longer ones are cut

  /// Starts a transfer, in pieces of `piece_bytes`, the same at both ends; buffers stay untouched
  /// until it is done. Messages between two ranks with the same tag are received in the order in
  /// which they were sent. Nothing is sent for 0 bytes.
  Message send(const void* data, int64_t bytes, int64_t to, int tag, int64_t piece_bytes = kWhole);
  Message receive(void* data, int64_t bytes, int64_t from, int tag, int64_t piece_bytes = kWhole);

  /// Drives MPI and tells whether the message is done. InternalError when MPI reports one;
  /// UserError when another number of bytes arrived than expected.
  bool test(Message& message);
  /// The same for many at once, none of them done, for little more than the cost of one. How many
  /// are done now.
  int64_t test(std::span<Message* const> messages);
  /// Receives a message of `bytes` bytes from anybody, if one has come. False otherwise.
  bool receive_waiting(void* data, int64_t bytes, int tag);
  /// The same for a message of any length.
  std::optional<std::string> receive_waiting_text(int tag, int64_t& from);
  /// Gives up: the buffers may be freed afterwards only because the process ends.
  void cancel(Message& message);

  /// The largest tag.
  int largest_tag() const { return largest_tag_; }

 private:
  void check(int code, const char* what) const;
  void take(Message& message, const MPI_Status& status) const;

  const MPI_Comm communicator_;
  int largest_tag_ = 32767;

  // Of one test of many; under the lock.
  std::vector<MPI_Request> asked_;
  std::vector<MPI_Request*> places_;  // of those asked, in their messages
  std::vector<Message*> owners_;
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace strait::comm
