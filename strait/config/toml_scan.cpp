#include "strait/config/toml_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "strait/base/errors.h"

namespace strait {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;
constexpr int64_t kMostDots = 64;

/// Walks over the tokens of TOML as far as quotes, comments and lines go. Text that is not TOML may
/// end a string too early, but never beyond the line where the parser stops as well.
class Scanner {
 public:
  Scanner(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  void scan() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        skip_string(c);
      } else if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else {
        check_bare(c);
        ++at_;
      }
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& message) const {
    ErrorPlace place;
    place.file = file_;
    place.line = line_;
    throw UserError(message, place);
  }

  void check_bare(char c) {
    if (c == '\n') ++line_;
    if (std::string_view("\n=,{}[]").find(c) != std::string_view::npos) dots_ = 0;  // a key ends
    if (c == '.' && ++dots_ > kMostDots)
      refuse(fmt::format("a key of more than {} dots", kMostDots));
  }

  void skip_string(char quote) {
    const std::string triple(3, quote);
    const bool multi_line = text_.substr(at_).starts_with(triple);
    at_ += multi_line ? 3 : 1;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n' && !multi_line) return;  // unterminated: the parser stops in this line
      if (c == '\n') ++line_;
      if (c == '\\' && quote == '"' && at_ + 1 < text_.size() && text_[at_ + 1] != '\n') {
        at_ += 2;
      } else if (c == quote && (!multi_line || text_.substr(at_).starts_with(triple))) {
        at_ += multi_line ? 3 : 1;
        for (int extra = 0; multi_line && extra < 2 && at_ < text_.size() && text_[at_] == quote;
             ++extra)
          ++at_;  // up to two quotes may belong to the text before the closing three
        return;
      } else {
        ++at_;
      }
    }
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  int64_t line_ = 1, dots_ = 0;
};

}  // namespace

void check_toml_text(std::string_view text, const std::string& file) {
  if (text.size() > kMostBytes) {
    ErrorPlace place;
    place.file = file;
    throw UserError(fmt::format("{} bytes are too many for a file of settings; the most is {}",
                                text.size(), kMostBytes),
                    place);
  }
  Scanner(text, file).scan();
}

}  // namespace strait
