// Memory that the ranks of one host share: a window of each rank, mapped by all of them. Pages
// exist once somebody has written them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "strait/memory/pool.h"

namespace strait::comm {

/// The windows of the ranks of `host`, by place in it; this rank allocates from its own.
/// Thread-safe.
class HostMemory final : public memory::PageSource {
 public:
  /// Gives the texts of all ranks of the host, by place, on all of them. Collective.
  using Exchange = std::function<std::vector<std::string>(const std::string& text)>;

  /// Collective over the ranks of the host. `board_bytes`: a further window, shared by all and
  /// filled with zeros. InputOutputError when the system refuses memory, or when the ranks cannot
  /// reach each other's (they run under different users, or in containers that hide processes).
  /// A window is twice the memory of the host, less where address space or a limit is short of it.
  HostMemory(int64_t place, int64_t board_bytes, const Exchange& exchange);
  ~HostMemory() override;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  int64_t ranks() const { return static_cast<int64_t>(windows_.size()); }
  int64_t own() const { return own_; }
  void* board() const { return board_; }
  const std::vector<int64_t>& process_ids() const { return process_ids_; }

  /// 64-byte aligned memory of this rank's window. NothingFits when it is full.
  void* allocate(int64_t bytes) override;
  void release(void* pointer) override;

  /// Offset in this rank's window, or -1 when [pointer, pointer + bytes) lies elsewhere.
  int64_t offset_of(const void* pointer, int64_t bytes) const;
  /// Where the window of the rank at `place` has `offset`.
  char* address(int64_t place, int64_t offset) const { return windows_[place] + offset; }

 private:
  void* map_file(int file, int64_t bytes) const;

  int64_t own_ = 0;
  int64_t window_bytes_ = 0, board_bytes_ = 0;
  std::vector<char*> windows_;
  std::vector<int64_t> process_ids_;
  void* board_ = nullptr;
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes; neighbours are joined
  std::map<int64_t, int64_t> used_;
};

}  // namespace strait::comm
