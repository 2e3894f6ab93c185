// Pieces of one codec whose blocks end at borders of the buffer. Where ranks hold elements of their
// own beside elements that are the same on all of them, a scale that depended on both would round
// the common ones differently on every rank.
//
// A piece holds the stretches between borders one after another, each encoded by itself.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "strait/codec/codec.h"

namespace strait::codec {

/// Elements between two borders, and where they stand in the piece that holds them.
struct Stretch {
  Values numbers;
  int64_t first = 0;   // of the elements in the buffer
  int64_t offset = 0;  // in the piece
  size_t bytes = 0;    // there
  std::span<uint8_t> in(uint8_t* piece) const { return {piece + offset, bytes}; }
};

struct BorderedCodec {
  CodecSpec codec;
  std::vector<int64_t> borders = {};  // rising, in elements of the buffer; none: the codec alone
  int64_t scale_bytes = 0;            // of the longest piece, where there are borders

  /// Calls use(begin, count) for the stretches of elements [begin, end) of the buffer.
  template <class Use>
  void for_each_stretch(int64_t begin, int64_t end, const Use& use) const {
    for (auto border = std::ranges::upper_bound(borders, begin); begin < end; ++border) {
      const int64_t stop = border == borders.end() ? end : std::min(*border, end);
      use(begin, stop - begin);
      begin = stop;
    }
  }
  /// Calls use(Stretch) for those of the piece of elements [begin, end) of the buffer, of which
  /// `held` are those from `held_begin` on.
  template <class Use>
  void for_each_stretch(const Values& held, int64_t held_begin, int64_t begin, int64_t end,
                        const Use& use) const {
    int64_t offset = 0;
    for_each_stretch(begin, end, [&](int64_t first, int64_t count) {
      char* data = static_cast<char*>(held.data) + (first - held_begin) * dtype_bytes(held.dtype);
      const int64_t bytes = codec::encoded_bytes(codec, count, held.dtype);
      use(Stretch{{data, held.dtype, count}, first, offset, static_cast<size_t>(bytes)});
      offset += bytes;
    });
  }
  /// Of elements [begin, end) of the buffer.
  int64_t encoded_bytes(int64_t begin, int64_t end, Dtype dtype = Dtype::kFloat32) const;
  int64_t metadata_bytes(int64_t begin, int64_t end) const;
};

/// "int8/2048", with borders "int8/2048~720,1440=16"; parse_bordered reads it back.
std::string print_bordered(const BorderedCodec& codec);
/// Of a codec's own text too. Errors: UserError of a codec; InternalError for borders that
/// print_bordered has not made.
BorderedCodec parse_bordered(const std::string& text);
/// Without borders, as a ledger's row names it.
std::string without_borders(const std::string& text);

}  // namespace strait::codec
