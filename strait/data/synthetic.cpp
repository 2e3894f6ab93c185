#include "strait/data/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/data/corpus_forms.h"
#include "strait/tokenizer/ids_tokenizer.h"

namespace strait {
namespace {

constexpr std::string_view kLengths = "synthetic:lengths/";
constexpr std::string_view kFile = "file=";
constexpr const char* kHistogram = "histogram";
constexpr uint64_t kSeed = 1;
constexpr double kSurprise = 0.3;
constexpr int64_t kMostTokens = int64_t{1} << 31;

[[noreturn]] void refuse(const std::string& path, const std::string& message) {
  ErrorPlace place;
  place.key = "data.path";
  throw UserError(fmt::format("data.path = \"{}\": {}", path, message), place);
}

/// Calls `set` with the name and the value of every "/name=value" in `text`, the end of `path`.
template <class Set>
void for_each_member(const std::string& path, std::string_view text, const Set& set) {
  std::set<std::string> seen;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('/', begin), text.size());
    const std::string_view member = text.substr(begin, end - begin);
    const size_t equals = std::min(member.find('='), member.size());
    const std::string name(member.substr(0, equals));
    if (!seen.insert(name).second)
      refuse(path, fmt::format("'{}' stands there twice; leave one of them out", name));
    set(name, member.substr(std::min(equals + 1, member.size())));
    begin = end + 1;
  }
}

template <class T>
T number_of(const std::string& path, const std::string& name, std::string_view text, T least,
            T most) {
  T value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = code == std::errc() && end == text.data() + text.size();
  if (!whole || !(value >= least && value <= most))
    refuse(path,
           fmt::format("{} must be a number from {} to {}, not '{}'", name, least, most, text));
  return value;
}

[[noreturn]] void refuse_member(const std::string& path, const std::string& name,
                                const std::vector<std::string>& members) {
  refuse(path, fmt::format("there is no '{}'; nearest: '{}'", name, nearest_choice(name, members)));
}

void set_member(const std::string& path, const std::string& name, std::string_view value,
                SyntheticData& data) {
  if (name == "scale") {
    data.scale = number_of<double>(path, name, value, 1e-6, 1e6);
  } else if (name == "longest") {
    data.longest = number_of<int64_t>(path, name, value, 0, kMostTokens);
  } else if (name == "tokens") {
    data.tokens = number_of<int64_t>(path, name, value, 16, kMostTokens);
  } else {
    refuse_member(path, name, {"scale", "longest", "tokens", "file"});
  }
}

void check_distribution(const std::string& path, const SyntheticData& data) {
  std::vector<std::string> names = length_distribution_names();
  names.push_back(kHistogram);
  if (std::ranges::find(names, data.distribution) == names.end())
    refuse(path, fmt::format("there is no distribution of lengths '{}'; nearest: '{}'",
                             data.distribution, nearest_choice(data.distribution, names)));
  if (data.distribution == kHistogram && data.file.empty())
    refuse(path, fmt::format("a histogram is in a file; nearest: \"{}/file=lengths.csv\"", path));
  if (data.distribution != kHistogram && !data.file.empty())
    refuse(path, fmt::format("file={} cannot take effect with '{}'; nearest: \"{}{}/file={}\"",
                             data.file, data.distribution, kLengths, kHistogram, data.file));
}

TokenPart make_part(const SyntheticData& data, int64_t tokens, uint64_t first_document,
                    const Tokenizer& tokenizer) {
  const LengthDistribution lengths = data.lengths();
  const auto vocabulary = static_cast<uint64_t>(tokenizer.vocabulary_size());
  TokenPart part;
  std::vector<int32_t> all;
  all.reserve(static_cast<size_t>(tokens));
  for (uint64_t document = first_document; std::ssize(all) < tokens; ++document) {
    part.document_starts.push_back(std::ssize(all));
    const RandomStream stream(kSeed, "data.synthetic", document);
    const int64_t length = std::min(lengths.length(document), tokens - std::ssize(all));
    uint64_t token = stream.below(0, vocabulary);
    for (int64_t i = 0; i < length; ++i) {
      all.push_back(static_cast<int32_t>(token));
      const uint64_t counter = 2 * static_cast<uint64_t>(i) + 1;
      token = stream.uniform(counter) < kSurprise ? stream.below(counter + 1, vocabulary)
                                                  : (5 * token + 3) % vocabulary;
    }
  }
  part.tokens = Tokens(std::move(all));
  count_scored(tokenizer, part);
  return part;
}

/// What stands in front of the background of an image.
struct Figure {
  bool disc;
  double row, column, radius;
  uint64_t color;

  Figure(const RandomStream& stream, uint64_t counter)
      : disc(stream.uniform(counter) < 0.5),
        row(stream.uniform(counter + 1)),
        column(stream.uniform(counter + 2)),
        radius(0.1 + 0.25 * stream.uniform(counter + 3)),
        color(stream.bits(counter + 4)) {}
  bool covers(double r, double c) const {
    const double down = std::abs(r - row), right = std::abs(c - column);
    return disc ? down * down + right * right < radius * radius : std::max(down, right) < radius;
  }
};

TokenPart make_images(const SyntheticImages& images, int64_t first, int64_t count) {
  TokenPart part;
  std::vector<int32_t> levels(static_cast<size_t>(count * images.pixels()));
  const auto pixels = static_cast<size_t>(images.pixels());
  for (int64_t i = 0; i < count; ++i)
    draw_image(images, static_cast<uint64_t>(first + i),
               std::span(levels).subspan(static_cast<size_t>(i) * pixels, pixels));
  part.record = images.pixels();
  part.scored_tokens = std::ssize(levels);
  part.tokens = Tokens(std::move(levels));
  return part;
}

std::shared_ptr<const Tokenizer> ids(int64_t vocabulary) {
  return std::make_shared<const IdsTokenizer>(vocabulary, std::nullopt);
}

Corpus make_image_corpus(const DataOptions& options, std::shared_ptr<const Tokenizer> existing) {
  const SyntheticImages images = parse_images(options.path);
  Corpus corpus;
  corpus.source = options.path;
  corpus.tokenizer = existing ? std::move(existing) : ids(kSyntheticVocabulary);
  const int64_t training = training_share(options, images.count);
  corpus.training = make_images(images, 0, training);
  if (training < images.count)
    corpus.validation = make_images(images, training, images.count - training);
  return corpus;
}

}  // namespace

void draw_image(const SyntheticImages& images, uint64_t number, std::span<int32_t> levels) {
  const RandomStream stream(kSeed, "data.images", number);
  constexpr uint64_t kPerFigure = 8, kPerColor = 4, kBackground = 64;
  std::vector<Figure> figures;
  for (uint64_t i = 0; i <= stream.below(0, 3); ++i)
    figures.emplace_back(stream, kPerFigure * (i + 1));
  const auto size = static_cast<double>(images.size);
  size_t at = 0;
  for (int64_t color = 0; color < images.colors; ++color) {
    const uint64_t counter = kBackground + kPerColor * static_cast<uint64_t>(color);
    const double corner = stream.uniform(counter), down = stream.uniform(counter + 1) - corner,
                 right = stream.uniform(counter + 2) - corner;
    for (int64_t row = 0; row < images.size; ++row)
      for (int64_t column = 0; column < images.size; ++column) {
        const double r = static_cast<double>(row) / size, c = static_cast<double>(column) / size;
        auto level = static_cast<int32_t>(
            std::lround(255.0 * std::clamp(corner + 0.5 * (down * r + right * c), 0.0, 1.0)));
        for (const Figure& figure : figures)
          if (figure.covers(r, c))
            level = static_cast<int32_t>(mix64(figure.color + static_cast<uint64_t>(color)) %
                                         kSyntheticVocabulary);
        levels[at++] = level;
      }
  }
}

LengthDistribution SyntheticData::lengths() const {
  if (!file.empty()) return {read_length_histogram(file), kSeed, scale, longest};
  return {distribution, kSeed, scale, longest};
}

SyntheticData parse_synthetic(const std::string& path) {
  if (!path.starts_with(kLengths))
    refuse(path, fmt::format("nothing else is synthetic; nearest: \"{}corpus\", or \"{}\"",
                             kLengths, kImages));
  SyntheticData data;
  const std::string_view rest = std::string_view(path).substr(kLengths.size());
  const std::string member = "/" + std::string(kFile);
  const size_t file = std::min(rest.find(member), rest.size());  // its path has '/', too
  data.file = rest.substr(std::min(file + member.size(), rest.size()));
  const size_t end = std::min(rest.find('/'), file);
  data.distribution = rest.substr(0, end);
  for_each_member(path, rest.substr(std::min(end + 1, file), file - std::min(end + 1, file)),
                  [&](const std::string& name, std::string_view value) {
                    set_member(path, name, value, data);
                  });
  check_distribution(path, data);
  try {
    data.lengths();
  } catch (UserError& error) {
    error.place().key = "data.path";
    throw;
  }
  return data;
}

SyntheticImages parse_images(const std::string& path) {
  const std::string_view rest = std::string_view(path).substr(std::string_view(kImages).size());
  if (!rest.empty() && !rest.starts_with('/'))
    refuse(path, fmt::format("nearest: \"{}\"", kImages));
  SyntheticImages images;
  for_each_member(path, rest.substr(std::min<size_t>(1, rest.size())),
                  [&](const std::string& name, std::string_view value) {
                    if (name == "size") {
                      images.size = number_of<int64_t>(path, name, value, 1, 4096);
                    } else if (name == "colors") {
                      images.colors = number_of<int64_t>(path, name, value, 1, 1024);
                    } else if (name == "count") {
                      images.count = number_of<int64_t>(path, name, value, 2, kMostTokens);
                    } else {
                      refuse_member(path, name, {"size", "colors", "count"});
                    }
                  });
  if (images.pixels() > kMostTokens / 2)
    refuse(path, fmt::format("two images of {} numbers are more than {}; nearest: size={}",
                             images.pixels(), kMostTokens,
                             static_cast<int64_t>(std::sqrt(kMostTokens / 2 / images.colors))));
  if (images.count > kMostTokens / images.pixels())
    refuse(path,
           fmt::format("{} images of {} numbers are more than {}; nearest: count={}", images.count,
                       images.pixels(), kMostTokens, kMostTokens / images.pixels()));
  return images;
}

Corpus make_synthetic_corpus(const DataOptions& options,
                             std::shared_ptr<const Tokenizer> existing) {
  if (has_images(options)) return make_image_corpus(options, std::move(existing));
  const SyntheticData data = parse_synthetic(options.path);
  Corpus corpus;
  corpus.source = options.path;
  corpus.tokenizer = std::move(existing);
  if (corpus.tokenizer == nullptr)
    corpus.tokenizer =
        names_ids(options.tokenizer)
            ? std::make_shared<const IdsTokenizer>(IdsTokenizer::from_spec(options.tokenizer))
            : ids(kSyntheticVocabulary);
  const int64_t training = training_share(options, data.tokens);
  corpus.training = make_part(data, training, 0, *corpus.tokenizer);
  if (training < data.tokens)
    corpus.validation =
        make_part(data, data.tokens - training, uint64_t{1} << 32, *corpus.tokenizer);
  return corpus;
}

}  // namespace strait
