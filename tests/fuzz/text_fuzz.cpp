// libFuzzer target: any bytes as a data file. The first byte chooses encoding and tokenizer; what
// decodes must be UTF-8 and must survive the tokenizer unchanged, as must bytes that are no text.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "strait/base/errors.h"
#include "strait/data/text.h"
#include "strait/tokenizer/tokenizer.h"
#include "strait/tokenizer/utf8.h"

namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

void check_tokenizer(const char* spec, const std::string& text) {
  const auto tokenizer = strait::make_tokenizer(spec, text);
  require(tokenizer->decode(tokenizer->encode(text)) == text,
          "decode(encode(text)) differs from text");
  const auto loaded = strait::parse_tokenizer(tokenizer->serialize(), "fuzz");
  require(loaded->encode(text) == tokenizer->encode(text), "a saved tokenizer encodes differently");
}

void check_bytes(const std::string& bytes) {
  const auto bpe = strait::make_tokenizer("bpe:300", bytes);
  require(bpe->decode(bpe->encode(bytes, 2)) == bytes, "BPE loses bytes");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const char* encodings[] = {"utf-8", "windows-1252", "latin-1"};
  const char* tokenizers[] = {"byte", "char", "bpe:300", nullptr};
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const char* const spec = tokenizers[data[0] / 3 % 4];
  if (spec == nullptr) check_bytes(bytes);
  try {
    const std::string text = strait::decode_text(bytes, encodings[data[0] % 3], "fuzz");
    require(strait::first_invalid_utf8(text) == text.size(), "decoded text is not UTF-8");
    if (spec != nullptr && !text.empty()) check_tokenizer(spec, text);
  } catch (const strait::UserError&) {
    return 0;  // refused, as bad input should be
  }
  return 0;
}
