#include "strait/tokenizer/byte_tokenizer.h"

#include <algorithm>

#include "strait/base/json.h"

namespace strait {

ByteTokenizer::ByteTokenizer() {
  for (int byte = 0; byte < 256; ++byte) bytes_ += static_cast<char>(byte);
}

std::vector<int32_t> ByteTokenizer::encode(std::string_view text, int) const {
  std::vector<int32_t> tokens(text.size());
  std::transform(text.begin(), text.end(), tokens.begin(),
                 [](char c) { return static_cast<int32_t>(static_cast<uint8_t>(c)); });
  return tokens;
}

std::string_view ByteTokenizer::token_bytes(int32_t token) const {
  check_token(token);
  return std::string_view(bytes_).substr(static_cast<size_t>(token), 1);
}

std::string ByteTokenizer::serialize() const {
  return Json::object({{"format", kTokenizerFormat}, {"kind", "byte"}}).dump(1) + "\n";
}

}  // namespace strait
