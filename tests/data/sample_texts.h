// Texts that tests share: English with its usual shapes, other scripts, and bytes of any kind.
#pragma once

#include <string>
#include <vector>

#include "strait/base/random.h"

namespace strait::testing {

inline std::string english(size_t words, uint64_t seed = 1) {
  static const std::vector<std::string> kWords = {
      "the",  "ships", "pass",     "narrow",    "strait", "isn't", "we'll", "they've",
      "1592", "water", "lowest",   "newer",     "widest", "and",   "low",   "wide",
      "new",  "I'm",   "Captain:", "\"Hold!\"", "tide,",  "banana"};
  const RandomStream stream(seed, "tests.english");
  std::string text;
  for (size_t i = 0; i < words; ++i) {
    text += kWords[stream.below(2 * i, kWords.size())];
    const uint64_t gap = stream.below(2 * i + 1, 20);
    text += gap == 0 ? ".\n\n" : gap == 1 ? "  " : gap == 2 ? ".\n" : " ";
  }
  return text;
}

inline std::string random_bytes(size_t size, uint64_t seed) {
  const RandomStream stream(seed, "tests.bytes");
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes += static_cast<char>(stream.below(i, 256));
  return bytes;
}

/// Letters of few kinds, so that merges overlap and repeat.
inline std::string few_letters(size_t size, int kinds, uint64_t seed) {
  const RandomStream stream(seed, "tests.letters");
  std::string text;
  for (size_t i = 0; i < size; ++i)
    text +=
        stream.below(2 * i, 9) == 0 ? ' ' : static_cast<char>('a' + stream.below(2 * i + 1, kinds));
  return text;
}

/// Valid UTF-8 of one to four bytes, with joined emoji and combining marks.
inline std::string many_scripts() {
  return "naïve café – «été» Straße Ω≈ç√ \u4e2d\u6587\u5b57\u7b26\u3002 "
         "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 "
         "\U0001F469\u200D\U0001F4BB\U0001F1EB\U0001F1F7 e\u0301 \u00a0\u2003\u3000 \u180e "
         "\u0e44\u0e17\u0e22 "
         "\u0661\u0662\u0663 \u216b\r\n\t\u0085 \U0010FFFF";
}

/// Every way to break UTF-8: stray, overlong, surrogate, too large, cut off.
inline std::string broken_utf8() {
  return "ok \x80 \xc0\xaf \xc1\x81 \xe0\x80\x80 \xed\xa0\x80x \xf0\x80\x80\x80 \xf4\x90\x80\x80 "
         "\xf5 \xff\xfe "
         "\xe4\xb8 caf\xe9 \xf0\x9f\x98";
}

}  // namespace strait::testing
