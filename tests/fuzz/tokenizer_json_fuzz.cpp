// libFuzzer target: any bytes as a tokenizer file. What is accepted must be written and read back
// alike, encode any bytes or refuse them, and bring them back if it is lossless.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "strait/base/errors.h"
#include "strait/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  std::unique_ptr<strait::Tokenizer> tokenizer;
  try {
    tokenizer = strait::parse_tokenizer(bytes, "fuzz");
  } catch (const strait::UserError&) {
    return 0;  // refused, as bad input should be
  }
  const auto again = strait::parse_tokenizer(tokenizer->serialize(), "fuzz again");
  if (again->vocabulary_size() != tokenizer->vocabulary_size())
    throw std::logic_error("the size of the vocabulary changes when saved");
  std::vector<int32_t> tokens;
  try {
    tokens = tokenizer->encode(bytes);
  } catch (const strait::UserError&) {
    return 0;  // the tokenizer cannot express the bytes
  }
  const std::string decoded = tokenizer->decode(tokens);
  if (tokenizer->is_lossless() && decoded != bytes)
    throw std::logic_error("decode(encode(text)) differs from text");
  if (again->encode(bytes) != tokens)
    throw std::logic_error("a saved tokenizer encodes differently");
  return 0;
}
