// A small training run for tests: odd sizes, text of its own, a folder of its own.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "strait/base/random.h"
#include "strait/config/parse.h"
#include "strait/train/train.h"

namespace strait::test {

/// A folder under the system's temporary one, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> count{0};
    path_ = (std::filesystem::temp_directory_path() /
             ("strait-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++)))
                .string();
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Words over a small alphabet, so that a model has something to learn.
inline std::string small_text(int64_t words) {
  const RandomStream stream(7, "text");
  const char* kWords[] = {"strait ", "link ",   "narrow ", "shard ",
                          "rank ",   "wide.\n", "step ",   "unit, "};
  std::string text;
  for (int64_t i = 0; i < words; ++i) text += kWords[stream.below(static_cast<uint64_t>(i), 8)];
  return text;
}

inline std::string write_text(const std::string& folder, const std::string& text) {
  const std::string path = folder + "/text.txt";
  std::ofstream(path) << text;
  return path;
}

/// A run with odd sizes (13 tokens, width 20, 3 layers, 37 as feed-forward width) in fp64.
inline Run small_run(const std::string& folder, const std::vector<std::string>& sets = {}) {
  const std::string text =
      "name = \"small\"\n[model]\npreset = \"nano-char\"\n"
      "shape = { layers = 3, heads = 2, kv_heads = 2, width = 20, ffn_width = 37, context = 13, "
      "bias = true }\n"
      "[train]\nsteps = 20\nglobal_batch_size = 24\nprecision = \"fp64\"\n"
      "[optimizer]\nlearning_rate = 3e-3\nwarmup_steps = 3\n"
      "[evaluation]\nevery_steps = 0\nbatches = 2\n";
  const std::string data = folder + "/text.txt";
  if (!std::filesystem::exists(data)) write_text(folder, small_text(2000));
  std::vector<std::string> all = {"data.path=" + data};
  all.insert(all.end(), sets.begin(), sets.end());
  return parse_run(text, "small.toml", all);
}

/// Trains; what train reports.
inline train::Outcome outcome_of(const Job& job, const train::Hooks& hooks = {},
                                 const train::Observer& observer = {}) {
  const std::atomic<int> no_signal{0};
  train::Outcome outcome;
  train::train(job, observer, no_signal, outcome, hooks);
  return outcome;
}

/// Trains on `ranks` thread ranks in `folder`/`name`; returns what train reports.
inline train::Outcome train_small(Run run, int64_t ranks, const std::string& run_dir,
                                  const train::Observer& observer = {}) {
  run.output.run_dir = run_dir;
  return outcome_of(make_job(run, ranks), {}, observer);
}

}  // namespace strait::test
