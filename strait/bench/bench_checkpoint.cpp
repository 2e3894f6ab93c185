#include "strait/bench/bench_checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/random.h"
#include "strait/base/work_folder.h"
#include "strait/checkpoint/reader.h"
#include "strait/checkpoint/session.h"
#include "strait/measure/rank_team.h"

namespace strait::measure {
namespace {

namespace fs = std::filesystem;
using checkpoint::StateRange;

constexpr size_t kBlockBytes = 8 << 20;  // of plain reads and writes
constexpr size_t kAlignmentBytes = 4096;
constexpr int64_t kUnits = 16;  // as many as a small model has

/// No error, which would make a contender that throws it missing.
struct Stopped {};

/// Whether somebody asks for the end.
class Stop {
 public:
  explicit Stop(const std::atomic<int>* asked) : asked_(asked) {}
  void look() const {
    if (asked_ != nullptr && asked_->load() != 0) throw Stopped();
  }

 private:
  const std::atomic<int>* asked_;
};

/// Inside the folder that --folder names.
WorkFolder work_folder(const std::string& parent) {
  try {
    return WorkFolder(parent + "/.strait-bench-");
  } catch (const InputOutputError& error) {
    ErrorPlace place;
    place.key = "--folder";
    throw UserError(fmt::format("--folder {}: {}", parent, error.what()), place);
  }
}

/// Memory that may be written past the page cache.
class Block {
 public:
  Block() : data_(static_cast<std::byte*>(std::aligned_alloc(kAlignmentBytes, kBlockBytes))) {
    ensure(data_ != nullptr, "bench checkpoint: no memory");
    std::memset(data_.get(), 0x5a, kBlockBytes);
  }
  std::span<std::byte> span() { return {data_.get(), kBlockBytes}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

/// A file opened for plain input or output.
class PlainFile {
 public:
  PlainFile(const std::string& path, int flags, Stop stop) : path_(path), stop_(stop) {
    descriptor_ = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
    if (descriptor_ < 0) fail("open");
  }
  ~PlainFile() { ::close(descriptor_); }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;
  /// Writes `bytes` bytes, in whole blocks, and syncs.
  void write(int64_t bytes, std::span<const std::byte> block) {
    while (bytes > 0) {
      stop_.look();
      const ssize_t count = ::write(descriptor_, block.data(), block.size());
      if (count <= 0) fail("write");
      bytes -= count;
    }
    if (::fsync(descriptor_) != 0) fail("sync");
  }
  /// Reads to the end of the file, block over block.
  void read(std::span<std::byte> block) {
    ssize_t count = 1;
    while (count > 0) {
      stop_.look();
      count = ::read(descriptor_, block.data(), block.size());
    }
    if (count < 0) fail("read");
  }
  /// Leaves nothing of the file in the page cache.
  void forget() {
    ::fsync(descriptor_);
    ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
  }

 private:
  [[noreturn]] void fail(const char* doing) const {
    throw InputOutputError(fmt::format("cannot {} {}: {}", doing, path_, errno_text(errno)));
  }
  std::string path_;
  Stop stop_;
  int descriptor_ = -1;
};

/// The ranks' memory, and the saves, loads and plain transfers of it.
class CheckpointRun {
 public:
  CheckpointRun(const CheckpointCase& the_case, Stop stop)
      : case_(the_case),
        stop_(stop),
        folder_(work_folder(the_case.folder)),
        team_(the_case.ranks, 1) {
    unit_elements_ = std::max<int64_t>(case_.ranks, case_.bytes / 4 / kUnits);
    own_.resize(static_cast<size_t>(case_.ranks));
    loaded_.resize(static_cast<size_t>(case_.ranks));
    blocks_ = std::vector<Block>(static_cast<size_t>(case_.ranks));
    team_.run([&](int64_t rank) {
      const RandomStream stream(1, "bench", static_cast<uint64_t>(rank));
      std::vector<float>& own = own_[static_cast<size_t>(rank)];
      own.resize(static_cast<size_t>(rank_elements(rank)));
      for (size_t i = 0; i < own.size(); ++i)
        own[i] = static_cast<float>(stream.bits(i) >> 40);  // finite, all different
      loaded_[static_cast<size_t>(rank)].resize(own.size());
    });
  }
  int64_t bytes() const { return 4 * kUnits * unit_elements_; }

  double save() {
    stop_.look();
    const std::string run_dir = folder_.path() + "/save" + std::to_string(saves_++);
    const std::string token = checkpoint::make_session_token();
    const double seconds = team_.run([&](int64_t rank) {
      checkpoint::SaveSession session({run_dir, token, rank, case_.ranks, 600.0, 0});
      session.save(
          1, views(rank),
          rank == 0 ? std::optional(checkpoint::SaveDescription{manifest(), {}}) : std::nullopt);
    });
    if (!kept_.empty()) fs::remove_all(kept_);
    kept_ = run_dir;
    return seconds;
  }
  /// As many bytes by as many threads: the faster of writing through the page cache and past it.
  double write_plainly() {
    const std::string plain = folder_.path() + "/plain";
    double best = std::numeric_limits<double>::infinity();
    for (const int flags : {0, O_DIRECT}) {
      fs::create_directory(plain);
      const auto write = [&](int64_t rank) {
        PlainFile file(fmt::format("{}/{}", plain, rank), O_WRONLY | O_CREAT | O_TRUNC | flags,
                       stop_);
        file.write(4 * rank_elements(rank), blocks_[static_cast<size_t>(rank)].span());
      };
      best = std::min(best, best_of(flags, write));
      fs::remove_all(plain);
    }
    return best;
  }
  double load() {
    stop_.look();
    forget();
    const double begin = now_seconds();
    const checkpoint::CheckpointReader reader(kept_);
    team_.run([&](int64_t rank) {
      std::byte* memory = reinterpret_cast<std::byte*>(loaded_[static_cast<size_t>(rank)].data());
      std::vector<checkpoint::LoadRequest> requests;
      for (const StateRange& range : ranges(rank)) {
        const auto bytes = static_cast<size_t>(4 * (range.end - range.begin));
        requests.push_back({range, {memory, bytes}});
        memory += bytes;
      }
      reader.load(requests);
      reader.verify_share(rank, case_.ranks);
    });
    return now_seconds() - begin;
  }
  /// The ranks' files, by the faster of the two ways.
  double read_plainly() {
    double best = std::numeric_limits<double>::infinity();
    for (const int flags : {0, O_DIRECT}) {
      forget();
      const auto read = [&](int64_t rank) {
        PlainFile(rank_file(rank), O_RDONLY | flags, stop_)
            .read(blocks_[static_cast<size_t>(rank)].span());
      };
      best = std::min(best, best_of(flags, read));
    }
    return best;
  }
  std::string check() {
    save();
    for (auto& memory : loaded_) std::fill(memory.begin(), memory.end(), -1.0f);
    load();
    for (size_t rank = 0; rank < own_.size(); ++rank)
      if (loaded_[rank] != own_[rank])
        return fmt::format("rank {} loaded something else than it saved", rank);
    return "";
  }

 private:
  /// Seconds of a transfer; endless where the file system has no way past the page cache.
  double best_of(int flags, const std::function<void(int64_t)>& transfer) {
    try {
      return team_.run(transfer);
    } catch (const InputOutputError&) {
      if (flags == 0) throw;
      return std::numeric_limits<double>::infinity();
    }
  }
  std::vector<StateRange> ranges(int64_t rank) const {
    std::vector<StateRange> ranges;
    for (int64_t unit = 0; unit < kUnits; ++unit)
      ranges.push_back({fmt::format("unit.{}", unit), checkpoint::kMaster,
                        unit_elements_ * rank / case_.ranks,
                        unit_elements_ * (rank + 1) / case_.ranks, Dtype::kFloat32});
    return ranges;
  }
  int64_t rank_elements(int64_t rank) const {
    int64_t sum = 0;
    for (const StateRange& range : ranges(rank)) sum += range.end - range.begin;
    return sum;
  }
  std::vector<checkpoint::ShardView> views(int64_t rank) const {
    std::vector<checkpoint::ShardView> views;
    const float* memory = own_[static_cast<size_t>(rank)].data();
    for (const StateRange& range : ranges(rank)) {
      views.push_back({range, memory});
      memory += range.end - range.begin;
    }
    return views;
  }
  checkpoint::Manifest manifest() const {
    checkpoint::Manifest manifest;
    manifest.step = 1;
    manifest.ranks = case_.ranks;
    for (int64_t unit = 0; unit < kUnits; ++unit)
      manifest.units.push_back({fmt::format("unit.{}", unit), unit_elements_, {}});
    return manifest;
  }
  std::string rank_file(int64_t rank) const {
    return fmt::format("{}/checkpoints/{}/rank-{:05d}.safetensors", kept_,
                       checkpoint::checkpoint_name(1), rank);
  }
  void forget() const {
    for (int64_t rank = 0; rank < case_.ranks; ++rank)
      PlainFile(rank_file(rank), O_RDONLY, stop_).forget();
  }

  CheckpointCase case_;
  Stop stop_;
  WorkFolder folder_;
  RankTeam team_;
  int64_t unit_elements_ = 0;
  int64_t saves_ = 0;
  std::string kept_;  // run folder of the last save
  std::vector<std::vector<float>> own_, loaded_;
  std::vector<Block> blocks_;  // of plain transfers, by rank
};

std::vector<BenchRow> rows_of(const CheckpointCase& checkpoint, const TimingOptions& options,
                              Stop stop) {
  CheckpointRun run(checkpoint, stop);
  std::vector<BenchRow> rows;
  for (const bool save : {true, false}) {
    BenchWork work;
    work.bench_case = Json::object({{"direction", save ? "save" : "load"},
                                    {"ranks", checkpoint.ranks},
                                    {"bytes", run.bytes()}});
    work.verify = [&] { return run.check(); };
    work.ours = {"strait", "", [&, save] { return save ? run.save() : run.load(); }, ""};
    work.work = static_cast<double>(run.bytes());
    work.rate_unit = "bytes_per_second";
    work.bound =
        Contender{save ? "disk-write" : "disk-read", "",
                  [&, save] { return save ? run.write_plainly() : run.read_plainly(); }, ""};
    rows.push_back(bench_row(work, options));
  }
  return rows;
}

}  // namespace

std::vector<BenchRow> bench_checkpoint(const CheckpointCase& checkpoint,
                                       const TimingOptions& options, const std::atomic<int>* stop) {
  try {
    return rows_of(checkpoint, options, Stop(stop));
  } catch (const Stopped&) {
    return {};
  }
}

}  // namespace strait::measure
