// Lengths of documents as real data has them, drawn from distributions that are known by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strait {

/// Names: "corpus" (13,463,214 documents of a general corpus, in 14 bins, as published with
/// MagiAttention), "lognormal-2k" and "lognormal-8k" (mock sets of Megatron-LM: mean 2,048 and
/// 8,192, sigma 1.1, clipped), "prolong" (the ProLong mixture, of which 60 % of tokens are pieces
/// of 65,536), "pareto" (tail with alpha = 1.2 over a log-normal body: the stress case).
const std::vector<std::string>& length_distribution_names();

/// Documents longer than the bin before has them, up to `longest`, and their share of all.
struct LengthBin {
  int64_t longest = 0;
  double share = 0;
};
/// A histogram from a file: a bin on each line, its longest length and its share or count, between
/// blanks or behind a comma; lengths rise from line to line; what stands behind '#' is skipped.
/// UserError (key data.path) with file and line.
std::vector<LengthBin> read_length_histogram(const std::string& file);

/// A distribution for machines of any size: lengths are drawn, multiplied by `scale` and cut at
/// `longest`. Every draw is a pure function of (seed, index).
class LengthDistribution {
 public:
  /// UserError (key data.path) names the nearest distribution, or what is wrong with the numbers.
  LengthDistribution(const std::string& name, uint64_t seed, double scale = 1, int64_t longest = 0);
  /// Lengths of a bin are equally frequent. UserError as above; `bins` as read_length_histogram's.
  LengthDistribution(std::vector<LengthBin> bins, uint64_t seed, double scale = 1,
                     int64_t longest = 0);

  /// Of document `index`: at least 1, at most `longest` unless that is 0.
  int64_t length(uint64_t index) const;
  /// Documents from `first` on, as many as fit into `tokens`.
  std::vector<int64_t> batch(uint64_t first, int64_t tokens) const;

 private:
  double drawn(uint64_t index) const;
  size_t kind_ = 0;              // of the named ones
  std::vector<LengthBin> bins_;  // of a histogram
  uint64_t seed_ = 0;
  double scale_ = 1;
  int64_t longest_ = 0;
};

}  // namespace strait
