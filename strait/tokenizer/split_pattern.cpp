#include "strait/tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "strait/base/errors.h"
#include "strait/tokenizer/utf8.h"

namespace strait {
namespace {

// White space is spelled out because \s of PCRE2 differs from Unicode's White_Space in U+180E. The
// possessive ++ and *+ change no match: what follows a run can never be a part of it.
#define STRAIT_WHITE R"(\t-\r\x{85}\p{Z})"
constexpr char kGpt2Pattern[] =
    R"('(?:s|t|re|ve|m|ll|d)| ?\p{L}++| ?\p{N}++| ?[^\p{L}\p{N})" STRAIT_WHITE
    R"(]++|[)" STRAIT_WHITE R"(]+(?![^)" STRAIT_WHITE R"(])|[)" STRAIT_WHITE R"(]+)";
/// GPT-2's where numbers are cut out first: white space before a number ends as if the text did.
constexpr char kDigitsPattern[] =
    R"('(?:s|t|re|ve|m|ll|d)| ?\p{L}++|\p{N}| ?[^\p{L}\p{N})" STRAIT_WHITE R"(]++|[)" STRAIT_WHITE
    R"(]+(?![^\p{N})" STRAIT_WHITE R"(])|[)" STRAIT_WHITE R"(]+)";
#define STRAIT_LLAMA3(NUMBER)                                                                     \
  R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}++|)" NUMBER                             \
  R"(| ?[^\p{L}\p{N})" STRAIT_WHITE R"(]++[\r\n]*+|[)" STRAIT_WHITE R"(]*[\r\n]+|[)" STRAIT_WHITE \
  R"(]+(?![^)" STRAIT_WHITE R"(])|[)" STRAIT_WHITE R"(]+)"
constexpr char kLlama3Pattern[] = STRAIT_LLAMA3(R"(\p{N}{1,3}+)");
constexpr char kQwen2Pattern[] = STRAIT_LLAMA3(R"(\p{N})");
#undef STRAIT_LLAMA3
#undef STRAIT_WHITE

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

struct SplitPattern::Compiled {
  pcre2_code* code = nullptr;
  bool machine_code = false;

  explicit Compiled(const char* pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF,
                         &error, &offset, nullptr);
    if (code == nullptr)
      throw InternalError(
          fmt::format("PCRE2 refuses the split pattern: error {} at {}", error, offset));
    machine_code = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  }
  ~Compiled() { pcre2_code_free(code); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
};

std::string_view split_regex(SplitKind kind) {
  if (kind == SplitKind::kLlama3)
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
           R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (kind == SplitKind::kQwen2)
    return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
           R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
}

const SplitPattern::Compiled& SplitPattern::compiled(SplitKind kind) {
  if (kind == SplitKind::kLlama3) {
    static const Compiled llama3(kLlama3Pattern);
    return llama3;
  }
  if (kind == SplitKind::kQwen2) {
    static const Compiled qwen2(kQwen2Pattern);
    return qwen2;
  }
  if (kind == SplitKind::kGpt2Digits) {
    static const Compiled digits(kDigitsPattern);
    return digits;
  }
  static const Compiled gpt2(kGpt2Pattern);
  return gpt2;
}

SplitPattern::SplitPattern(SplitKind kind) : compiled_(&compiled(kind)) {}

struct Splitter::State {
  const SplitPattern::Compiled& compiled;
  std::string_view text;
  pcre2_match_data* match;
  size_t position = 0;
  size_t valid_end =
      0;  // text[valid_begin, valid_end) is UTF-8 and is followed by a bad byte or the end
  size_t valid_begin = 0;

  State(const SplitPattern::Compiled& c, std::string_view t)
      : compiled(c), text(t), match(pcre2_match_data_create(1, nullptr)) {
    if (match == nullptr) throw InternalError("PCRE2: out of memory");
  }
  ~State() { pcre2_match_data_free(match); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  size_t bad_run_end() const {
    size_t end = position;
    while (end < text.size() && utf8_sequence_length(text, end) == 0) ++end;
    return end;
  }

  size_t match_end() {
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data() + valid_begin);
    const size_t length = valid_end - valid_begin;
    const size_t start = position - valid_begin;
    int status = PCRE2_ERROR_JIT_STACKLIMIT;
    if (compiled.machine_code)
      status = pcre2_jit_match(compiled.code, subject, length, start, PCRE2_NO_UTF_CHECK, match,
                               nullptr);
    if (status == PCRE2_ERROR_JIT_STACKLIMIT)
      status = pcre2_match(compiled.code, subject, length, start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                           match, nullptr);
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match);
    if (status < 0 || bounds[0] != start || bounds[1] <= start)
      throw InternalError(
          fmt::format("PCRE2: the split pattern failed with {} at byte {}", status, position));
    return valid_begin + bounds[1];
  }
};

Splitter::Splitter(const SplitPattern& pattern, std::string_view text)
    : state_(std::make_unique<State>(*pattern.compiled_, text)) {}

Splitter::~Splitter() = default;

bool Splitter::next(std::string_view& piece) {
  State& s = *state_;
  if (s.position == s.text.size()) return false;
  if (s.position == s.valid_end) {
    s.valid_begin = s.position;
    s.valid_end = first_invalid_utf8(s.text, s.position);
  }
  const size_t end = s.position == s.valid_end ? s.bad_run_end() : s.match_end();
  if (s.position == s.valid_end) s.valid_end = end;  // the next text begins behind the bad run
  piece = s.text.substr(s.position, end - s.position);
  s.position = end;
  return true;
}

size_t safe_split_offset(std::string_view text, size_t offset) {
  for (size_t i = offset == 0 ? 1 : offset; i < text.size(); ++i)
    if (text[i] == ' ' && is_ascii_letter(text[i - 1])) return i;
  return text.size();
}

}  // namespace strait
