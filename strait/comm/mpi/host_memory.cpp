#include "strait/comm/mpi/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/process_memory.h"

namespace strait::comm {
namespace {

constexpr int64_t kAlignment = 4096;

/// Address space of this process so far.
int64_t mapped_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * ::sysconf(_SC_PAGE_SIZE);
}

/// The largest window that a process with windows of `ranks` ranks may have: twice what the host
/// has, which leaves room for holes; less where the address space, half of which windows take at
/// most, or a limit of the process says so.
int64_t most_window_bytes(int64_t ranks) {
  constexpr int64_t kAddressSpace = int64_t{1} << 46;  // of 2^47
  const int64_t room =
      std::clamp<int64_t>((address_space_limit() - mapped_bytes()) / 2, 0, kAddressSpace);
  return std::min({2 * physical_memory_bytes(), room / ranks, file_size_limit()}) / kAlignment *
         kAlignment;
}

[[noreturn]] void refuse(const std::string& what) {
  throw InputOutputError("memory shared between the ranks of a host: " + what + ": " +
                         errno_text(errno));
}

/// A file without a name that grows as it is written.
int make_file(int64_t bytes) {
  const int file = ::memfd_create("strait", MFD_CLOEXEC);
  if (file < 0) refuse("memfd_create");
  if (::ftruncate(file, bytes) != 0) refuse("ftruncate to " + std::to_string(bytes) + " bytes");
  return file;
}

/// Another process's file, through its table of open files.
int open_file(int64_t process, int64_t file) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  const int own = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) refuse("open " + path);
  return own;
}

}  // namespace

void* HostMemory::map_file(int file, int64_t bytes) const {
  void* address = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_NORESERVE, file, 0);
  if (address == MAP_FAILED) refuse("mmap of " + std::to_string(bytes) + " bytes");
  return address;
}

HostMemory::HostMemory(int64_t place, int64_t board_bytes, const Exchange& exchange)
    : own_(place), board_bytes_(board_bytes) {
  // Address space, not memory. The least of what the ranks may have.
  const auto ranks = static_cast<int64_t>(exchange("").size());
  window_bytes_ = std::numeric_limits<int64_t>::max();
  for (const std::string& most : exchange(std::to_string(most_window_bytes(ranks))))
    window_bytes_ = std::min<int64_t>(window_bytes_, std::stoll(most));
  const int own_window = make_file(window_bytes_);
  const int own_board = place == 0 ? make_file(board_bytes) : -1;
  const std::vector<std::string> all =
      exchange(std::to_string(::getpid()) + " " + std::to_string(own_window) + " " +
               std::to_string(own_board));
  int board_file = own_board;
  for (size_t at = 0; at < all.size(); ++at) {
    std::istringstream told(all[at]);
    int64_t process = 0, window = 0, board = 0;
    told >> process >> window >> board;
    const bool own = static_cast<int64_t>(at) == place;
    const int file = own ? own_window : open_file(process, window);
    windows_.push_back(static_cast<char*>(map_file(file, window_bytes_)));
    process_ids_.push_back(process);
    if (!own) ::close(file);
    if (at == 0 && !own) board_file = open_file(process, board);
  }
  board_ = map_file(board_file, board_bytes);
  exchange("");  // all have opened what they need
  ::close(board_file);
  ::close(own_window);
  free_[0] = window_bytes_;
}

HostMemory::~HostMemory() {
  for (char* window : windows_) ::munmap(window, static_cast<size_t>(window_bytes_));
  if (board_ != nullptr) ::munmap(board_, static_cast<size_t>(board_bytes_));
}

void* HostMemory::allocate(int64_t bytes) {
  const int64_t size = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    if (hole->second < size) continue;
    const int64_t offset = hole->first, left = hole->second - size;
    free_.erase(hole);
    if (left > 0) free_[offset + size] = left;
    used_[offset] = size;
    return windows_[own_] + offset;
  }
  throw NothingFits("memory shared between the ranks of a host: the window of " +
                    std::to_string(window_bytes_) + " bytes has no room for " +
                    std::to_string(bytes));
}

void HostMemory::release(void* pointer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t offset = static_cast<char*>(pointer) - windows_[own_];
  const auto found = used_.find(offset);
  ensure(found != used_.end(), "HostMemory::release: not allocated here");
  int64_t begin = offset, end = offset + found->second;
  used_.erase(found);
  const auto next = free_.find(end);
  if (next != free_.end()) {
    end += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      begin = before->first;
      free_.erase(before);
    }
  }
  free_[begin] = end - begin;
}

int64_t HostMemory::offset_of(const void* pointer, int64_t bytes) const {
  const char* begin = static_cast<const char*>(pointer);
  const char* window = windows_[own_];
  if (begin < window || begin + bytes > window + window_bytes_) return -1;
  return begin - window;
}

}  // namespace strait::comm
