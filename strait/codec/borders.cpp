#include "strait/codec/borders.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strait/base/errors.h"
#include "strait/codec/count_text.h"

namespace strait::codec {
namespace {

constexpr char kBorders = '~', kScales = '=';

}  // namespace

int64_t BorderedCodec::encoded_bytes(int64_t begin, int64_t end, Dtype dtype) const {
  int64_t bytes = 0;
  for_each_stretch(begin, end, [&](int64_t, int64_t count) {
    bytes += codec::encoded_bytes(codec, count, dtype);
  });
  return bytes;
}

int64_t BorderedCodec::metadata_bytes(int64_t begin, int64_t end) const {
  int64_t bytes = 0;
  for_each_stretch(begin, end,
                   [&](int64_t, int64_t count) { bytes += codec::metadata_bytes(codec, count); });
  return bytes;
}

std::string print_bordered(const BorderedCodec& codec) {
  const std::string text = print_codec(codec.codec);
  if (codec.borders.empty()) return text;
  return fmt::format("{}{}{}{}{}", text, kBorders, fmt::join(codec.borders, ","), kScales,
                     codec.scale_bytes);
}

BorderedCodec parse_bordered(const std::string& text) {
  const size_t at = text.find(kBorders);
  BorderedCodec read{parse_codec(text.substr(0, at))};
  if (at == std::string::npos) return read;
  const size_t scales = text.find(kScales, at);
  ensure(scales != std::string::npos, "codec: borders without bytes of scales");
  for (size_t begin = at + 1; begin < scales;) {
    const size_t end = std::min(text.find(',', begin), scales);
    read.borders.push_back(parse_count(text, begin, end));
    begin = end + 1;
  }
  read.scale_bytes = parse_count(text, scales + 1, text.size());
  return read;
}

std::string without_borders(const std::string& text) { return text.substr(0, text.find(kBorders)); }

}  // namespace strait::codec
