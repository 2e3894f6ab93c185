#include "strait/data/lengths.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/random.h"

namespace strait {
namespace {

constexpr double kLongestBin = 2147483647;

const std::vector<LengthBin>& corpus_bins() {
  static const std::vector<LengthBin> bins{
      {10, .22},     {50, 2.91},    {100, 5.20},   {200, 10.23}, {500, 28.19},
      {1024, 24.64}, {2048, 15.65}, {4096, 7.34},  {8192, 3.05}, {16384, 1.29},
      {32768, .85},  {65536, .14},  {131072, .17}, {196608, .14}};
  return bins;
}

double from_bins(const std::vector<LengthBin>& bins, double choice, double inside) {
  double total = 0;
  for (const LengthBin& bin : bins) total += bin.share;
  double left = choice * total;
  int64_t shortest = 0;
  for (const LengthBin& bin : bins) {
    if (left < bin.share || &bin == &bins.back())
      return static_cast<double>(shortest) + 1 +
             inside * static_cast<double>(bin.longest - shortest - 1);
    left -= bin.share;
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

void check_numbers(double scale, int64_t longest) {
  if (scale > 0 && longest >= 0) return;
  throw UserError(
      fmt::format("data.path: lengths need a scale above 0 and a longest of at least 1 (or 0: "
                  "none), not {} and {}",
                  scale, longest));
}

/// Spreadsheets write it in front of UTF-8.
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// What a line of a histogram says; nothing but comments: none.
std::optional<LengthBin> parse_bin(std::string line, const ErrorPlace& place) {
  line.resize(std::min(line.find('#'), line.size()));
  std::ranges::replace(line, ',', ' ');
  std::istringstream words(line);
  std::vector<double> numbers;
  for (std::string word; words >> word;) {
    double number = 0;
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (code != std::errc() || end != word.data() + word.size() || !std::isfinite(number))
      throw UserError(
          fmt::format("'{}' in a histogram of lengths is no number; a line is a length and the "
                      "share of documents up to it, as in \"1024, 24.6\"",
                      word.substr(0, 100)),
          place);
    numbers.push_back(number);
  }
  if (numbers.empty()) return std::nullopt;
  if (numbers.size() != 2)
    throw UserError(fmt::format("a line of a histogram of lengths has {} numbers; the nearest "
                                "valid form is a length and a share, as in \"1024, 24.6\"",
                                numbers.size()),
                    place);
  if (!(numbers[0] >= 1 && numbers[0] <= kLongestBin) || numbers[0] != std::floor(numbers[0]))
    throw UserError(fmt::format("length {} of a histogram must be a whole number from 1 to {}",
                                numbers[0], kLongestBin),
                    place);
  if (numbers[1] < 0)
    throw UserError(fmt::format("share {} of a histogram of lengths is below 0; the nearest valid "
                                "value is 0",
                                numbers[1]),
                    place);
  return LengthBin{static_cast<int64_t>(numbers[0]), numbers[1]};
}

}  // namespace

std::vector<LengthBin> read_length_histogram(const std::string& file) {
  ErrorPlace place;
  place.key = "data.path";
  place.file = file;
  std::string whole = read_file(file);
  if (whole.starts_with(kByteOrderMark)) whole.erase(0, kByteOrderMark.size());
  std::istringstream text(whole);
  std::vector<LengthBin> bins;
  double total = 0;
  int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    place.line = ++number;
    const std::optional<LengthBin> bin = parse_bin(line, place);
    if (!bin) continue;
    if (!bins.empty() && bin->longest <= bins.back().longest)
      throw UserError(fmt::format("length {} of a histogram stands behind {}; the nearest valid "
                                  "length is {}",
                                  bin->longest, bins.back().longest, bins.back().longest + 1),
                      place);
    total += bin->share;
    bins.push_back(*bin);
  }
  place.line = std::nullopt;
  if (!(total > 0) || !std::isfinite(total))
    throw UserError(
        "a histogram of lengths has no documents; the nearest valid one has a line of "
        "a length and a share above 0",
        place);
  return bins;
}

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
  check_numbers(scale, longest);
  kind_ = static_cast<size_t>(found - names.begin());
}

LengthDistribution::LengthDistribution(std::vector<LengthBin> bins, uint64_t seed, double scale,
                                       int64_t longest)
    : bins_(std::move(bins)), seed_(seed), scale_(scale), longest_(longest) {
  ensure(!bins_.empty(), "a histogram without bins");
  check_numbers(scale, longest);
}

double LengthDistribution::drawn(uint64_t index) const {
  const RandomStream stream(seed_, "data.lengths", index);
  const double choice = stream.uniform(0), inside = stream.uniform(1), normal = stream.normal(1);
  if (!bins_.empty()) return from_bins(bins_, choice, inside);
  switch (kind_) {
    case 0:
      return from_bins(corpus_bins(), choice, inside);
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
