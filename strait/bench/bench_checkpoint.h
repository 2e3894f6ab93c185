// Saving and loading a checkpoint against the disk's own rate.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "strait/bench/bench.h"

namespace strait::measure {

struct CheckpointCase {
  int64_t ranks = 2;          // threads that save and load together
  int64_t bytes = 1LL << 28;  // of the whole checkpoint
  std::string folder = ".";   // where a temporary folder is made: on the disk that is meant
};

/// Two rows, for direction "save" and "load". Saving: SaveSession of all ranks, hashes and fsync
/// included; bound "disk-write": as many threads write as many bytes plainly, through the page
/// cache or past it, whichever is faster, and fsync. Loading: CheckpointReader into the ranks'
/// memory, hashes checked, nothing in the page cache; bound "disk-read": plain reads of the same
/// files, the faster of the two ways, nothing in the page cache. Verified: what was saved is what
/// is loaded. rate = bytes per second. UserError when the folder does not exist; InputOutputError
/// when the disk is full. Once `stop` is not 0 the temporary folder is removed and there are no
/// rows; it is looked at between transfers, and between the blocks of plain ones.
std::vector<BenchRow> bench_checkpoint(const CheckpointCase& checkpoint,
                                       const TimingOptions& options = {},
                                       const std::atomic<int>* stop = nullptr);

}  // namespace strait::measure
