#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "strait/base/errors.h"
#include "strait/codec/block_scale.h"
#include "strait/codec/codec.h"
#include "strait/codec/element.h"
#include "strait/codec/sparse.h"

namespace strait::codec {
namespace {

constexpr int64_t kLargestBlock = int64_t{1} << 30;
constexpr double kUsualDensity = 0.01;
constexpr int64_t kUsualRank = 4;

struct Kind {
  CodecKind kind;
  const char* name;
  int64_t usual_block;  // 0: no blocks
  int bits = 0;         // of qsgd
};
constexpr Kind kKinds[] = {
    {CodecKind::kNone, "none", 0},          {CodecKind::kBfloat16, "bf16", 0},
    {CodecKind::kFloat16, "fp16", 0},       {CodecKind::kInt8, "int8", 2048},
    {CodecKind::kInt4, "int4", 512},        {CodecKind::kFp8E4m3, "fp8e4m3", 2048},
    {CodecKind::kFp8E5m2, "fp8e5m2", 2048}, {CodecKind::kE3m0, "e3m0", 64},
    {CodecKind::kQsgd, "qsgd1", 512, 1},    {CodecKind::kQsgd, "qsgd2", 512, 2},
    {CodecKind::kQsgd, "qsgd3", 512, 3},    {CodecKind::kQsgd, "qsgd4", 512, 4},
    {CodecKind::kQsgd, "qsgd5", 512, 5},    {CodecKind::kQsgd, "qsgd6", 512, 6},
    {CodecKind::kQsgd, "qsgd7", 512, 7},    {CodecKind::kQsgd, "qsgd8", 512, 8},
    {CodecKind::kTopK, "topk", 0},          {CodecKind::kRandomK, "randomk", 0},
    {CodecKind::kPowerSgd, "powersgd", 0},
};

const Kind& kind_of(const CodecSpec& spec) {
  for (const Kind& known : kKinds)
    if (known.kind == spec.kind && known.bits == spec.bits) return known;
  throw InternalError("codec: unknown kind");
}

/// The text split at '+': "kind[/block]", then flags.
std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find('+', begin)) != std::string::npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

/// Reads one codec and knows how to complain about it.
class Parser {
 public:
  Parser(const std::string& text, const std::string& key) : text_(text) {
    if (!key.empty()) place_.key = key;
  }

  CodecSpec read() {
    const std::vector<std::string> parts = parts_of(text_);
    read_head(parts[0]);
    for (size_t i = 1; i < parts.size(); ++i) read_flag(parts[i]);
    return spec_;
  }

 private:
  [[noreturn]] void refuse(const std::string& why, const std::string& nearest) const {
    throw UserError(fmt::format("codec '{}': {}; nearest valid choice: {}", text_, why, nearest),
                    place_);
  }

  void read_head(const std::string& head) {
    const size_t slash = head.find('/');
    const std::string name = head.substr(0, slash);
    std::vector<std::string> names;
    for (const Kind& known : kKinds) {
      names.push_back(known.name);
      if (name != known.name) continue;
      spec_.kind = known.kind;
      spec_.block = known.usual_block;
      spec_.bits = known.bits;
      if (is_low_rank(spec_))
        read_rank(slash == std::string::npos ? std::to_string(kUsualRank) : head.substr(slash + 1));
      else if (is_sparse(spec_))
        read_density(known, slash == std::string::npos ? "" : head.substr(slash));
      else if (slash != std::string::npos)
        read_block(known, head.substr(slash + 1));
      return;
    }
    refuse_bits(name);
    refuse(fmt::format("there is no kind '{}'", name), nearest_choice(name, names));
  }

  /// "qsgd" with a number that it does not have, or with none.
  void refuse_bits(const std::string& name) const {
    if (!name.starts_with("qsgd")) return;
    int64_t bits = 4;
    const auto [stop, error] = std::from_chars(name.data() + 4, name.data() + name.size(), bits);
    if (error == std::errc::result_out_of_range) bits = 8;
    refuse("qsgd has 1 to 8 bits, as in qsgd4",
           fmt::format("qsgd{}", std::clamp<int64_t>(bits, 1, 8)));
  }

  /// `text`: "" or "/0.01".
  void read_density(const Kind& kind, const std::string& text) {
    spec_.density = kUsualDensity;
    if (text.empty()) return;
    double density = 0;
    const auto [stop, error] = std::from_chars(text.data() + 1, text.data() + text.size(), density);
    if (stop != text.data() + text.size() || error != std::errc() || !std::isfinite(density))
      refuse(fmt::format("'{}' is no density", text.substr(1)),
             fmt::format("{}/{}", kind.name, kUsualDensity));
    if (density <= 0 || density > 1)
      refuse("a density is above 0 and at most 1",
             fmt::format("{}/{}", kind.name, density > 1 ? 1.0 : kUsualDensity));
    spec_.density = density;
  }

  void read_rank(const std::string& digits) {
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, spec_.rank);
    if (stop != end || digits.empty() || error != std::errc() || spec_.rank > kLargestBlock)
      refuse(fmt::format("'{}' is no rank", digits), fmt::format("powersgd/{}", kUsualRank));
    if (spec_.rank < 1) refuse("a rank is at least 1", "powersgd/1");
  }

  void read_block(const Kind& kind, const std::string& digits) {
    if (kind.usual_block == 0) refuse(fmt::format("{} has no blocks", kind.name), kind.name);
    int64_t block = 0;
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, block);
    if (stop != end || digits.empty() || error != std::errc())
      refuse(fmt::format("'{}' is no number of elements", digits),
             fmt::format("{}/{}", kind.name, kind.usual_block));
    if (block < 1) refuse("a block has at least 1 element", fmt::format("{}/1", kind.name));
    if (block > kLargestBlock)
      refuse(fmt::format("a block has at most {} elements", kLargestBlock),
             fmt::format("{}/{}", kind.name, kLargestBlock));
    spec_.block = block;
  }

  void read_flag(const std::string& flag) {
    const std::vector<std::string> flags = {"asymmetric", "paper", "stochastic", "ef"};
    const std::string nearest = nearest_choice(flag, flags);
    if (flag != nearest)
      refuse(fmt::format("there is no flag '+{}'", flag), print_codec(spec_) + "+" + nearest);
    const bool integers = spec_.kind == CodecKind::kInt8 || spec_.kind == CodecKind::kInt4;
    const bool fits = flag == "ef"           ? spec_.kind != CodecKind::kNone
                      : flag == "stochastic" ? spec_.kind == CodecKind::kQsgd
                                             : integers;
    if (!fits)
      refuse(fmt::format("{} has no '+{}'", kind_of(spec_).name, flag), print_codec(spec_));
    bool& value = flag == "ef"           ? spec_.error_feedback
                  : flag == "stochastic" ? spec_.stochastic
                  : flag == "paper"      ? spec_.paper_divisor
                                         : spec_.asymmetric;
    if (value) refuse(fmt::format("'+{}' twice", flag), print_codec(spec_));
    value = true;
  }

  const std::string& text_;
  ErrorPlace place_;
  CodecSpec spec_;
};

double qsgd_bound(const CodecSpec& spec, double low, double high) {
  const double step = high > low ? std::max((high - low) / ((1 << spec.bits) - 1), 0x1p-126) : 0.0;
  return step / (spec.stochastic ? 1 : 2) * (1 + 0x1p-12) +
         0x1p-22 * std::max(std::abs(low), std::abs(high));
}

double integer_bound(const CodecSpec& spec, double low, double high) {
  const IntegerRange range = integer_range(spec);
  const double largest = std::max(std::abs(low), std::abs(high));
  if (spec.asymmetric) {
    const double step = high > low ? std::max((high - low) / range.divisor, 0x1p-126) : 0.0;
    // The middle level of the paper's form leaves a whole step above the last one.
    return step * (spec.paper_divisor ? 1.0 : 0.5) * (1 + 0x1p-12) + 0x1p-22 * largest;
  }
  const double step = std::max(largest / range.divisor, 0x1p-126);
  return std::max(step / 2, high - range.highest * step) * (1 + 0x1p-12);
}

}  // namespace

CodecSpec parse_codec(const std::string& text, const std::string& key) {
  return Parser(text, key).read();
}

std::string print_codec(const CodecSpec& spec) {
  std::string text = kind_of(spec).name;
  if (spec.block > 0) text += fmt::format("/{}", spec.block);
  if (spec.rank > 0) text += fmt::format("/{}", spec.rank);
  if (spec.density > 0) text += fmt::format("/{}", spec.density);
  if (spec.asymmetric) text += "+asymmetric";
  if (spec.paper_divisor) text += "+paper";
  if (spec.stochastic) text += "+stochastic";
  if (spec.error_feedback) text += "+ef";
  return text;
}

int64_t kept_elements(const CodecSpec& spec, int64_t elements) {
  // A little more, so that 0.29 of 100 are 29.
  const double kept = std::floor(spec.density * static_cast<double>(elements) * (1 + 0x1p-40));
  return std::min(elements, std::max<int64_t>(1, static_cast<int64_t>(kept)));
}

int64_t num_blocks(const CodecSpec& spec, int64_t elements) {
  if (kind_of(spec).usual_block == 0) return 0;
  ensure(spec.block >= 1, "codec: a block needs at least 1 element");
  return (elements + spec.block - 1) / spec.block;
}

int64_t payload_bytes(const CodecSpec& spec, int64_t elements, Dtype dtype) {
  switch (spec.kind) {
    case CodecKind::kNone:
      return elements * dtype_bytes(dtype);
    case CodecKind::kBfloat16:
    case CodecKind::kFloat16:
      return elements * 2;
    case CodecKind::kInt4:
    case CodecKind::kE3m0:
      return (elements + 1) / 2;
    case CodecKind::kInt8:
    case CodecKind::kFp8E4m3:
    case CodecKind::kFp8E5m2:
      return elements;
    case CodecKind::kQsgd:
      return (elements * spec.bits + 63) / 64 * 8;
    case CodecKind::kTopK:
    case CodecKind::kRandomK:
      return 4 * (is_dense(spec, elements) ? elements : kept_elements(spec, elements));
    case CodecKind::kPowerSgd:
      throw InternalError("codec: powersgd has no pieces");
  }
  throw InternalError("codec: unknown kind");
}

int64_t metadata_bytes(const CodecSpec& spec, int64_t elements) {
  if (is_sparse(spec)) {
    if (is_dense(spec, elements)) return 0;
    return spec.kind == CodecKind::kTopK ? 4 * kept_elements(spec, elements) : 8;
  }
  return num_blocks(spec, elements) * (has_middles(spec) ? 8 : 4);
}

namespace {

/// Payloads end at whole words, so the last block of a piece may be shorter than its share: the
/// most blocks whose least piece is not longer than this one.
int64_t qsgd_blocks(const CodecSpec& spec, int64_t piece_bytes) {
  int64_t blocks = piece_bytes * 8 / (64 + spec.block * spec.bits) + 2;
  const auto least = [&](int64_t count) {
    return encoded_bytes(spec, (count - 1) * spec.block + 1);
  };
  while (blocks > 0 && least(blocks) > piece_bytes) --blocks;
  return blocks;
}

}  // namespace

int64_t scale_bytes(const CodecSpec& spec, int64_t piece_bytes) {
  ensure(!is_sparse(spec), "codec: the length of a sparse piece does not tell its metadata");
  if (kind_of(spec).usual_block == 0) return 0;
  if (spec.kind == CodecKind::kQsgd) return qsgd_blocks(spec, piece_bytes) * 8;
  const int64_t two_blocks = encoded_bytes(spec, 2 * spec.block);  // nibbles: whole bytes
  const int64_t rest = piece_bytes % two_blocks;
  const int64_t blocks = piece_bytes / two_blocks * 2 + (rest > 0 ? 1 : 0) +
                         (rest > encoded_bytes(spec, spec.block) ? 1 : 0);
  return blocks * metadata_bytes(spec, 1);
}

int64_t encoded_bytes(const CodecSpec& spec, int64_t elements, Dtype dtype) {
  return payload_bytes(spec, elements, dtype) + metadata_bytes(spec, elements);
}

double error_bound(const CodecSpec& spec, double low, double high) {
  const double largest = std::max(std::abs(low), std::abs(high));
  switch (spec.kind) {
    case CodecKind::kNone:
      return 0.0;
    case CodecKind::kBfloat16:
      return std::max(largest * 0x1p-8, 0x1p-134);
    case CodecKind::kFloat16:
      return std::max(largest * 0x1p-11, 0x1p-25);
    case CodecKind::kInt8:
    case CodecKind::kInt4:
      return integer_bound(spec, low, high);
    case CodecKind::kFp8E4m3:
      return std::max(largest / 448, 0x1p-126) * 16 * (1 + 0x1p-12);
    case CodecKind::kFp8E5m2:
      return std::max(largest / 57344, 0x1p-126) * 4096 * (1 + 0x1p-12);
    case CodecKind::kE3m0:
      return (1 - std::sqrt(0.5)) * std::max(largest, double{kSmallestE3m0Scale}) * (1 + 0x1p-20);
    case CodecKind::kQsgd:
      return qsgd_bound(spec, low, high);
    case CodecKind::kTopK:
    case CodecKind::kRandomK:
      return largest;
    case CodecKind::kPowerSgd:
      break;
  }
  throw InternalError("codec: unknown kind");
}

}  // namespace strait::codec
