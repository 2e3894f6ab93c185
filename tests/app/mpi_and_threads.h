// The same run on processes and on threads.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/app/program.h"

namespace strait::test {

/// Trains both ways with `settings` of the run file that `write` puts into a folder: bits, bytes
/// and memory are the same.
inline void expect_processes_to_train_as_threads(
    const std::vector<std::string>& settings, int64_t ranks,
    std::string (*write)(const std::string& folder) = small_run_file) {
  const TemporaryFolder folder;
  const std::string run_file = write(folder.path()), log = folder.path() + "/log";
  const auto arguments = [&](const std::string& name) {
    std::vector<std::string> words = {"train", run_file, "--json",
                                      folder.path() + "/" + name + ".json"};
    words.insert(words.end(), {"--set", "output.run_dir=" + folder.path() + "/" + name});
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    return words;
  };
  std::vector<std::string> threads = arguments("threads");
  threads.insert(threads.end(), {"--ranks", std::to_string(ranks)});
  ASSERT_EQ(Child(threads, log).wait(), 0) << read_file(log);
  ASSERT_EQ(Child(arguments("mpi"), log, mpirun(static_cast<int>(ranks))).wait(), 0)
      << read_file(log);
  const auto report = [&](const std::string& name) {
    const std::string path = folder.path() + "/" + name + ".json";
    return Json::parse(read_file(path), path);
  };
  const Json want = report("threads"), got = report("mpi");
  EXPECT_EQ(got.at("backend").as_string(), "mpi");
  for (const char* key : {"parameter_hash", "losses", "validation", "bytes_per_step", "state_bytes",
                          "allocator_peak_bytes"})
    EXPECT_EQ(got.at(key).dump(), want.at(key).dump()) << key;
}

}  // namespace strait::test
