#include "strait/tokenizer/subword/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "strait/base/errors.h"
#include "strait/tokenizer/subword/characters.h"
#include "strait/tokenizer/subword/json_part.h"
#include "strait/tokenizer/subword/normalizer.h"

namespace strait::subword {
namespace {

constexpr const char* kSupported =
    "Sequence, Metaspace, BertPreTokenizer, WhitespaceSplit, Punctuation, Digits, Split of a "
    "String, or none";

/// What becomes of the places at which a text is cut.
enum class Border { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext };

/// The next place to cut at, from `at` on: (begin, end), both text.size() where there is none.
using Finder = std::function<std::pair<size_t, size_t>(std::string_view text, size_t at)>;
using Step = std::function<void(const Piece& piece, Pieces& out)>;

void emit(const Piece& whole, size_t begin, size_t end, Pieces& out) {
  if (begin < end)
    out.push_back({whole.text.substr(begin, end - begin), whole.at_start && begin == 0});
}

void cut(const Piece& piece, const Finder& find, Border border, Pieces& out) {
  const size_t size = piece.text.size();
  size_t begin = 0;
  for (size_t at = 0; at < size;) {
    const auto [first, last] = find(piece.text, at);
    at = last;
    if (first == size) break;
    if (border == Border::kMergedWithNext) {
      emit(piece, begin, first, out);
      begin = first;
      continue;
    }
    emit(piece, begin, border == Border::kMergedWithPrevious ? last : first, out);
    if (border == Border::kIsolated) emit(piece, first, last, out);
    begin = last;
  }
  emit(piece, begin, size, out);
}

Finder finds(std::string wanted) {
  return [wanted = std::move(wanted)](std::string_view text, size_t at) {
    const size_t found = std::min(text.find(wanted, at), text.size());
    return std::pair(found, std::min(found + wanted.size(), text.size()));
  };
}

/// Single characters, or with `runs` as many as stand together.
template <class Is>
Finder finds_characters(Is is, bool runs) {
  return [is, runs](std::string_view text, size_t at) {
    size_t begin = text.size(), end = text.size();
    while (at < text.size()) {
      const size_t start = at;
      if (is(next_character(text, at))) {
        begin = std::min(begin, start);
        end = at;
        if (!runs) break;
      } else if (begin < text.size()) {
        break;
      }
    }
    return std::pair(begin, end);
  };
}

Step cutter(Finder find, Border border) {
  return [find = std::move(find), border](const Piece& piece, Pieces& out) {
    cut(piece, find, border, out);
  };
}

Border border_of(const Json& part, const std::string& where) {
  const std::string behavior = text_or(part, "behavior", "Isolated");
  if (behavior == "Isolated") return Border::kIsolated;
  if (behavior == "Removed") return Border::kRemoved;
  if (behavior == "MergedWithPrevious") return Border::kMergedWithPrevious;
  if (behavior == "MergedWithNext") return Border::kMergedWithNext;
  unsupported(where + ".behavior", behavior,
              "Isolated, Removed, MergedWithPrevious, MergedWithNext");
}

Step split_step(const Json& part, const std::string& where) {
  require_flag(part, where, "invert", false);
  const Json& pattern = part.at("pattern");
  if (const Json* regex = pattern.find("Regex"); regex != nullptr)
    unsupported(where + ".pattern.Regex", regex->as_string(), "a String");
  const std::string& wanted = pattern.at("String").as_string();
  if (wanted.empty()) throw UserError(where + ".pattern.String is empty");
  return cutter(finds(wanted), border_of(part, where));
}

/// "prepend_scheme", or what older files say by "add_prefix_space".
std::string prepend_scheme(const Json& part, const std::string& where) {
  const bool prefix = flag_or(part, "add_prefix_space", true);
  const std::string scheme = text_or(part, "prepend_scheme", prefix ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    unsupported(where + ".prepend_scheme", scheme, "always, first, never");
  return scheme;
}

Step metaspace_step(const Json& part, const std::string& where) {
  const std::string mark = part.at("replacement").as_string();
  if (mark.empty()) throw UserError(where + ".replacement is empty");
  const std::string scheme = prepend_scheme(part, where);
  const bool split = flag_or(part, "split", true);
  return [=, find = finds(mark)](const Piece& piece, Pieces& out) {
    Piece marked{replaced(piece.text, " ", mark), piece.at_start};
    const bool prepend = scheme == "always" || (scheme == "first" && piece.at_start);
    if (prepend && !marked.text.starts_with(mark)) marked.text = mark + marked.text;
    if (split)
      cut(marked, find, Border::kMergedWithNext, out);
    else
      out.push_back(std::move(marked));
  };
}

}  // namespace

PreTokenizer::PreTokenizer(const Json& json) { add(json, "pre_tokenizer"); }

void PreTokenizer::add(const Json& part, const std::string& where) {
  const std::string type = type_of(part);
  if (type == "Sequence") {
    const Json::Array& parts = part.at("pretokenizers").as_array();
    for (size_t i = 0; i < parts.size(); ++i)
      add(parts[i], fmt::format("{}.pretokenizers[{}]", where, i));
  } else if (type == "Metaspace") {
    steps_.push_back(metaspace_step(part, where));
  } else if (type == "WhitespaceSplit" || type == "BertPreTokenizer") {
    steps_.push_back(cutter(finds_characters(is_white_space, true), Border::kRemoved));
    if (type == "BertPreTokenizer")
      steps_.push_back(cutter(finds_characters(is_punctuation, false), Border::kIsolated));
  } else if (type == "Punctuation") {
    steps_.push_back(cutter(finds_characters(is_punctuation, false), border_of(part, where)));
  } else if (type == "Digits") {
    const bool single = flag_or(part, "individual_digits", false);
    steps_.push_back(cutter(finds_characters(is_number, !single), Border::kIsolated));
  } else if (type == "Split") {
    steps_.push_back(split_step(part, where));
  } else {
    unsupported(where, type, kSupported);
  }
}

Pieces PreTokenizer::apply(std::string text, bool at_start) const {
  Pieces pieces;
  const size_t original = text.size();
  if (!text.empty()) pieces.push_back({std::move(text), at_start});
  for (const Step& step : steps_) {
    Pieces next;
    size_t bytes = 0, counted = 0;
    for (const Piece& piece : pieces) {
      step(piece, next);
      for (; counted < next.size(); ++counted) bytes += next[counted].text.size();
      check_growth(original, bytes);
    }
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace strait::subword
