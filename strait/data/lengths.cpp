#include "strait/data/lengths.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "strait/base/errors.h"
#include "strait/base/random.h"

namespace strait {
namespace {

struct Bin {
  double percent;
  int64_t longest;
};
// Shares of documents by length, lower limits being the upper ones of the bins before.
constexpr std::array<Bin, 14> kCorpus{{{.22, 10},
                                       {2.91, 50},
                                       {5.20, 100},
                                       {10.23, 200},
                                       {28.19, 500},
                                       {24.64, 1024},
                                       {15.65, 2048},
                                       {7.34, 4096},
                                       {3.05, 8192},
                                       {1.29, 16384},
                                       {.85, 32768},
                                       {.14, 65536},
                                       {.17, 131072},
                                       {.14, 196608}}};

double from_corpus(double choice, double inside) {
  double total = 0;
  for (const Bin& bin : kCorpus) total += bin.percent;
  double left = choice * total;
  int64_t shortest = 0;
  for (const Bin& bin : kCorpus) {
    if (left < bin.percent || &bin == &kCorpus.back())
      return static_cast<double>(shortest) + 1 +
             inside * static_cast<double>(bin.longest - shortest - 1);
    left -= bin.percent;
    shortest = bin.longest;
  }
  return 1;
}

struct LogNormal {
  double mean, sigma, shortest, longest;
  double value(double normal) const {
    return std::clamp(std::exp(std::log(mean) - sigma * sigma / 2 + sigma * normal), shortest,
                      longest);
  }
};
constexpr LogNormal kShort{2048, 1.1, 100, 4096}, kLong{8192, 1.1, 1024, 32768};
constexpr LogNormal kBody{1024, 1.0, 1, 1e9};

// Tokens of the mixture come from here in pieces of 65,536, the others from web documents.
constexpr double kPieces = 0.6, kPieceTokens = 65536;
constexpr LogNormal kWeb{1024, 1.1, 16, 65536};
// One document in ten belongs to the tail, whose shortest is twice the body's mean.
constexpr double kTailShare = 0.1, kTailAlpha = 1.2, kTailShortest = 2048, kTailLongest = 4194304;

}  // namespace

const std::vector<std::string>& length_distribution_names() {
  static const std::vector<std::string> names = {"corpus", "lognormal-2k", "lognormal-8k",
                                                 "prolong", "pareto"};
  return names;
}

LengthDistribution::LengthDistribution(const std::string& name, uint64_t seed, double scale,
                                       int64_t longest)
    : seed_(seed), scale_(scale), longest_(longest) {
  const std::vector<std::string>& names = length_distribution_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    throw UserError(fmt::format("data.path: no distribution of lengths '{}'; nearest: '{}'", name,
                                nearest_choice(name, names)));
  }
  if (!(scale > 0) || longest < 0) {
    throw UserError(
        fmt::format("data.path: lengths need a scale above 0 and a longest of at least 1 (or 0: "
                    "none), not {} and {}",
                    scale, longest));
  }
  kind_ = static_cast<size_t>(found - names.begin());
}

double LengthDistribution::drawn(uint64_t index) const {
  const RandomStream stream(seed_, "data.lengths", index);
  const double choice = stream.uniform(0), inside = stream.uniform(1), normal = stream.normal(1);
  switch (kind_) {
    case 0:
      return from_corpus(choice, inside);
    case 1:
      return kShort.value(normal);
    case 2:
      return kLong.value(normal);
    case 3: {
      // Documents, not tokens, are drawn: pieces are as many times rarer as they are longer.
      const double pieces = kPieces / kPieceTokens, web = (1 - kPieces) / kWeb.mean;
      return choice < pieces / (pieces + web) ? kPieceTokens : kWeb.value(normal);
    }
    default:
      return choice < kTailShare
                 ? std::min(kTailLongest, kTailShortest * std::pow(1 - inside, -1 / kTailAlpha))
                 : kBody.value(normal);
  }
}

int64_t LengthDistribution::length(uint64_t index) const {
  const int64_t scaled = std::max<int64_t>(1, std::llround(drawn(index) * scale_));
  return longest_ > 0 ? std::min(scaled, longest_) : scaled;
}

std::vector<int64_t> LengthDistribution::batch(uint64_t first, int64_t tokens) const {
  std::vector<int64_t> lengths;
  for (int64_t left = tokens;; ++first) {
    const int64_t next = length(first);
    if (next > left) return lengths;
    left -= next;
    lengths.push_back(next);
  }
}

}  // namespace strait
