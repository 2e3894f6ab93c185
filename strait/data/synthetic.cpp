#include "strait/data/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
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

void set_member(const std::string& path, std::string_view member, SyntheticData& data) {
  const size_t equals = std::min(member.find('='), member.size());
  const std::string name(member.substr(0, equals));
  const std::string_view value = member.substr(std::min(equals + 1, member.size()));
  if (name == "scale") {
    data.scale = number_of<double>(path, name, value, 1e-6, 1e6);
  } else if (name == "longest") {
    data.longest = number_of<int64_t>(path, name, value, 0, kMostTokens);
  } else if (name == "tokens") {
    data.tokens = number_of<int64_t>(path, name, value, 16, kMostTokens);
  } else {
    refuse(path, fmt::format("there is no '{}'; nearest: '{}'", name,
                             nearest_choice(name, std::vector<std::string>{"scale", "longest",
                                                                           "tokens", "file"})));
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

}  // namespace

LengthDistribution SyntheticData::lengths() const {
  if (!file.empty()) return {read_length_histogram(file), kSeed, scale, longest};
  return {distribution, kSeed, scale, longest};
}

SyntheticData parse_synthetic(const std::string& path) {
  if (!path.starts_with(kLengths))
    refuse(path, fmt::format("nothing else is synthetic; nearest: \"{}corpus\"", kLengths));
  SyntheticData data;
  const std::string_view rest = std::string_view(path).substr(kLengths.size());
  for (size_t begin = 0; begin <= rest.size();) {
    size_t end = std::min(rest.find('/', begin), rest.size());
    const std::string_view member = rest.substr(begin, end - begin);
    if (begin == 0) {
      data.distribution = member;
    } else if (member.starts_with(kFile)) {
      data.file = rest.substr(begin + kFile.size());
      end = rest.size();
    } else {
      set_member(path, member, data);
    }
    begin = end + 1;
  }
  check_distribution(path, data);
  try {
    data.lengths();
  } catch (UserError& error) {
    error.place().key = "data.path";
    throw;
  }
  return data;
}

Corpus make_synthetic_corpus(const DataOptions& options,
                             std::shared_ptr<const Tokenizer> existing) {
  const SyntheticData data = parse_synthetic(options.path);
  Corpus corpus;
  corpus.source = options.path;
  corpus.tokenizer = std::move(existing);
  if (corpus.tokenizer == nullptr)
    corpus.tokenizer = std::make_shared<const IdsTokenizer>(
        names_ids(options.tokenizer) ? IdsTokenizer::from_spec(options.tokenizer)
                                     : IdsTokenizer(kSyntheticVocabulary, std::nullopt));
  const int64_t training = training_share(options, data.tokens);
  corpus.training = make_part(data, training, 0, *corpus.tokenizer);
  if (training < data.tokens)
    corpus.validation =
        make_part(data, data.tokens - training, uint64_t{1} << 32, *corpus.tokenizer);
  return corpus;
}

}  // namespace strait
