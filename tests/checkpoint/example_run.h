// A small run to save: units of odd sizes, three states, and values that depend on (generation,
// unit, state, element) only, so that any range can be checked without keeping what was saved.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "strait/base/random.h"
#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/reader.h"
#include "strait/checkpoint/session.h"

namespace strait::checkpoint {

/// A folder of its own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = ::testing::TempDir() + "strait-checkpoint-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Message of the error of type E that `body` throws; fails the test when it throws none.
template <class E>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw another type: " << error.what();
    return "";
  }
  ADD_FAILURE() << "threw nothing";
  return "";
}

inline std::vector<UnitRecord> example_units() {
  return {{"embedding", 103, {{"tokens.weight", {10, 10}, 0}, {"norm.bias", {3}, 100}}},
          {"blocks.0", 57, {{"blocks.0.up.weight", {7, 8}, 0}, {"blocks.0.scale", {}, 56}}},
          {"head", 1, {{"head.bias", {1}, 0}}}};
}

inline const std::vector<std::pair<std::string, Dtype>>& example_states() {
  static const std::vector<std::pair<std::string, Dtype>> states = {
      {kMaster, Dtype::kFloat32},
      {kFirstMoment, Dtype::kFloat32},
      {kSecondMoment, Dtype::kFloat64}};
  return states;
}

/// Bytes of a range as the run had them in `generation`.
inline std::vector<std::byte> example_bytes(int64_t generation, const StateRange& range) {
  const RandomStream stream(static_cast<uint64_t>(generation), range.unit + "/" + range.state);
  const auto size = static_cast<size_t>(dtype_bytes(range.dtype));
  std::vector<std::byte> bytes(static_cast<size_t>(range.end - range.begin) * size);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const uint64_t value = stream.bits(static_cast<uint64_t>(i));
    std::memcpy(bytes.data() + static_cast<size_t>(i - range.begin) * size, &value, size);
  }
  return bytes;
}

/// Ranges of `rank` when every state is cut into `ranks` nearly equal parts (some are empty).
inline std::vector<StateRange> example_ranges(int64_t rank, int64_t ranks) {
  std::vector<StateRange> ranges;
  for (const UnitRecord& unit : example_units())
    for (const auto& [state, dtype] : example_states())
      ranges.push_back({unit.name, state, unit.elements * rank / ranks,
                        unit.elements * (rank + 1) / ranks, dtype});
  return ranges;
}

/// A rank's part, with the memory it lies in.
struct ExampleShards {
  ExampleShards(int64_t generation, int64_t rank, int64_t ranks) {
    for (const StateRange& range : example_ranges(rank, ranks)) {
      memory.push_back(example_bytes(generation, range));
      views.push_back({range, memory.back().data()});
    }
  }
  std::vector<std::vector<std::byte>> memory;
  std::vector<ShardView> views;
};

inline Manifest example_manifest(int64_t step, int64_t ranks, int64_t generation) {
  Manifest manifest;
  manifest.step = step;
  manifest.tokens = step * 1024;
  manifest.ranks = ranks;
  manifest.placement = "zero3";
  manifest.mesh = Json::object({{"data", ranks}});
  manifest.model = Json::object({{"preset", "example"}, {"dropout", 0.1}});
  manifest.seed = 1337;
  manifest.precision = "fp32";
  manifest.sequences_consumed = step * 16;
  manifest.parameters = 161;
  manifest.units = example_units();
  manifest.extra =
      Json::object({{"generation", generation}, {"losses", std::vector<double>{4.2, 3.9}}});
  return manifest;
}

inline SaveDescription example_description(int64_t step, int64_t ranks, int64_t generation) {
  return {example_manifest(step, ranks, generation),
          {{"tokenizer.json", "{\"model\": \"bytes\"}"}, {"run.toml", "version = 1\n"}}};
}

/// Runs `body(rank)` on one thread per rank.
inline void on_ranks(int64_t ranks, const std::function<void(int64_t)>& body) {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

/// One rank's session of the run "example" (or another token).
inline SessionOptions example_session(const std::string& run_dir, int64_t rank, int64_t ranks,
                                      double deadline_seconds = 30.0) {
  SessionOptions options;
  options.run_dir = run_dir;
  options.token = "example";
  options.rank = rank;
  options.ranks = ranks;
  options.deadline_seconds = deadline_seconds;
  return options;
}

/// Saves with the three calls, ranks one after the other. Generation = step unless given.
inline std::string save_example(const std::string& run_dir, int64_t step, int64_t ranks,
                                int64_t generation = -1) {
  if (generation < 0) generation = step;
  const std::string folder = begin_save(run_dir, step);
  SaveDescription description = example_description(step, ranks, generation);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const ExampleShards shards(generation, rank, ranks);
    description.manifest.add(write_rank_file(folder, rank, shards.views));
  }
  for (const auto& [name, contents] : description.texts)
    description.manifest.files.push_back(write_text(folder, name, contents));
  return publish(folder, description.manifest);
}

/// Loads everything as `ranks` ranks would and compares it with what `generation` had.
inline void expect_content(const std::string& path, int64_t generation, int64_t ranks = 3) {
  const CheckpointReader reader(path);
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (const StateRange& range : example_ranges(rank, ranks)) {
      const std::vector<std::byte> wanted = example_bytes(generation, range);
      std::vector<std::byte> loaded(wanted.size());
      reader.load(range, loaded);
      ASSERT_EQ(loaded, wanted) << path << " " << shard_tensor_name(range);
    }
}

/// Names in RUN/checkpoints, sorted.
inline std::vector<std::string> checkpoint_entries(const std::string& run_dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir + "/checkpoints"))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace strait::checkpoint
