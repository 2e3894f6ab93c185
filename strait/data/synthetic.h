// Data that nobody has to have: documents of drawn lengths and tokens, for benchmarks and for what
// a cluster would do with data of a known shape.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "strait/data/corpus.h"
#include "strait/data/lengths.h"
#include "strait/data/options.h"

namespace strait {

/// Of a run without data.tokenizer.
inline constexpr int64_t kSyntheticVocabulary = 256;

/// "synthetic:lengths/NAME", NAME a distribution (lengths.h), and behind it, in any order,
/// "/scale=S", by which lengths are multiplied (1), "/longest=N", at which they are cut (0: not)
/// and "/tokens=N", of the training and the validation part together (2^22). NAME "histogram" ends
/// in "/file=PATH", a histogram's, whatever stands in PATH.
struct SyntheticData {
  std::string distribution;
  std::string file;  // of "histogram"
  double scale = 1;
  int64_t longest = 0;
  int64_t tokens = int64_t{1} << 22;

  /// Reads the file of a histogram.
  LengthDistribution lengths() const;
};
/// UserError (key data.path) with the nearest form, member or number, and as
/// read_length_histogram.
SyntheticData parse_synthetic(const std::string& path);

/// "synthetic:images", and behind it, in any order, "/size=P", height and width in pixels (32),
/// "/colors=C", numbers of a pixel (3), and "/count=N", images of the training and the validation
/// part together (4096).
inline constexpr const char* kImages = "synthetic:images";
struct SyntheticImages {
  int64_t size = 32, colors = 3, count = 4096;
  int64_t pixels() const { return colors * size * size; }
};
/// UserError (key data.path) with the nearest member or number.
SyntheticImages parse_images(const std::string& path);

/// Image `number`: a background that changes from corner to corner, and in front of it one to three
/// discs or boxes. [colors, size, size] levels 0 .. 255 behind one another.
void draw_image(const SyntheticImages& images, uint64_t number, std::span<int32_t> levels);

/// Text: documents as long as drawn, the last one as long as tokens are left. A token follows from
/// the one before it, or in three of ten cases is any: a model has something to learn. The same for
/// every seed of a run, with `existing` or as many tokens as data.tokenizer = "ids:N" says.
/// Images: records (TokenPart), a token for every level of a color.
Corpus make_synthetic_corpus(const DataOptions& options, std::shared_ptr<const Tokenizer> existing);

}  // namespace strait
