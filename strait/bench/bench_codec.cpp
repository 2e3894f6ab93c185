#include "strait/bench/bench_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/codec/codec.h"
#include "strait/measure/copy.h"
#include "strait/memory/pool.h"

namespace strait::measure {
namespace {

using codec::CodecSpec;

const std::vector<std::string> kDirections = {"encode", "decode", "decode-add"};

/// Memory as training has it, on huge pages where the system grants them; every page touched.
class Buffer {
 public:
  Buffer(memory::Pool& pool, int64_t bytes)
      : pool_(&pool), bytes_(bytes), data_(static_cast<uint8_t*>(pool.allocate(bytes))) {
    std::memset(data_, 0, static_cast<size_t>(bytes));
  }
  ~Buffer() { pool_->release(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  memory::Pool* pool_;
  int64_t bytes_;
  uint8_t* data_;
};

float value_at(const Buffer& buffer, Dtype dtype, int64_t i) {
  if (dtype == Dtype::kFloat32) return reinterpret_cast<const float*>(buffer.data())[i];
  if (dtype == Dtype::kFloat64)
    return static_cast<float>(reinterpret_cast<const double*>(buffer.data())[i]);
  const uint16_t bits = reinterpret_cast<const uint16_t*>(buffer.data())[i];
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

/// Numbers in [-1, 1) of every size down to 2^-12.
void fill(const Buffer& buffer, Dtype dtype, int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) {
    const uint64_t bits = mix64(static_cast<uint64_t>(i));
    const float size =
        static_cast<float>(bits >> 40) * 0x1p-24f / static_cast<float>(1 << (bits % 13));
    const float x = bits & (1 << 20) ? size : -size;
    if (dtype == Dtype::kFloat32)
      reinterpret_cast<float*>(buffer.data())[i] = x;
    else if (dtype == Dtype::kFloat64)
      reinterpret_cast<double*>(buffer.data())[i] = x;
    else
      reinterpret_cast<uint16_t*>(buffer.data())[i] =
          static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
  }
}

/// Source, piece and result of one codec.
class CodecRun {
 public:
  CodecRun(memory::Pool& pool, const CodecSpec& spec, const CodecCase& codec_case,
           const Buffer& source, const Buffer& result)
      : spec_(spec),
        dtype_(codec_case.dtype),
        elements_(codec_case.elements),
        source_(source),
        result_(result),
        piece_(pool, codec::encoded_bytes(spec, elements_, dtype_)) {}

  void run(const std::string& direction) {
    const codec::Values result{result_.data(), dtype_, elements_};
    if (direction == "encode")
      lost_ = codec::encode(spec_, {source_.data(), dtype_, elements_}, piece());
    else if (direction == "decode")
      codec::decode(spec_, piece(), result);
    else
      codec::decode_add(spec_, piece(), result);
  }
  /// Bytes read and written by one run.
  double moved_bytes(const std::string& direction) const {
    const double whole = static_cast<double>(source_.bytes());
    return static_cast<double>(piece_.bytes()) + (direction == "decode-add" ? 2 : 1) * whole;
  }
  double copy_bytes() const { return 2.0 * static_cast<double>(source_.bytes()); }
  /// Seconds of a copy of the source to the result, in the way that was faster at first.
  double copy() {
    if (!streaming_) streaming_ = best_of_three(true) < best_of_three(false);
    return copy(*streaming_);
  }
  std::string check() {
    run("encode");
    if (lost_ != 0) return fmt::format("{} elements are said not to be finite", lost_);
    run("decode");
    const int64_t block = spec_.block > 0 ? spec_.block : 1;
    for (int64_t first = 0; first < elements_; first += block) {
      const std::string wrong = check_block(first, std::min(first + block, elements_));
      if (!wrong.empty()) return wrong;
    }
    return dtype_ == Dtype::kBfloat16 ? "" : check_sum();
  }

 private:
  std::span<uint8_t> piece() const { return {piece_.data(), static_cast<size_t>(piece_.bytes())}; }
  double copy(bool streaming) {
    return timed([&] {
      if (streaming)
        streaming_copy(source_.data(), result_.data(), source_.bytes());
      else
        std::memcpy(result_.data(), source_.data(), static_cast<size_t>(source_.bytes()));
    })();
  }
  double best_of_three(bool streaming) {
    return std::min({copy(streaming), copy(streaming), copy(streaming)});
  }
  std::string check_block(int64_t first, int64_t last) const {
    float low = value_at(source_, dtype_, first), high = low;
    for (int64_t i = first; i < last; ++i) {
      low = std::min(low, value_at(source_, dtype_, i));
      high = std::max(high, value_at(source_, dtype_, i));
    }
    double bound = codec::error_bound(spec_, low, high);
    // A result in bf16 is rounded once more.
    if (dtype_ == Dtype::kBfloat16) bound += std::max(std::abs(low), std::abs(high)) * 0x1p-7;
    for (int64_t i = first; i < last; ++i) {
      const double x = value_at(source_, dtype_, i), got = value_at(result_, dtype_, i);
      if (!(std::abs(x - got) <= bound))
        return fmt::format("element {} is {}, decoded {}; bound {}", i, x, got, bound);
    }
    return "";
  }
  /// After a decode, decode-add doubles.
  std::string check_sum() {
    std::vector<float> decoded;
    for (int64_t i = 0; i < elements_; i += 97) decoded.push_back(value_at(result_, dtype_, i));
    run("decode-add");
    for (int64_t i = 0; i < elements_; i += 97)
      if (value_at(result_, dtype_, i) != 2 * decoded[static_cast<size_t>(i / 97)])
        return fmt::format("element {} is not the sum", i);
    return "";
  }

  CodecSpec spec_;
  Dtype dtype_;
  int64_t elements_;
  const Buffer& source_;
  const Buffer& result_;
  Buffer piece_;
  int64_t lost_ = 0;
  std::optional<bool> streaming_;
};

BenchRow codec_row(CodecRun& run, const CodecSpec& spec, const CodecCase& codec_case,
                   const std::string& direction, const TimingOptions& options) {
  BenchWork work;
  work.bench_case = Json::object({{"codec", codec::print_codec(spec)},
                                  {"direction", direction},
                                  {"elements", codec_case.elements},
                                  {"dtype", dtype_name(codec_case.dtype)}});
  work.verify = [&] { return run.check(); };
  work.ours = {"strait", "", timed([&] { run.run(direction); }), ""};
  work.work = run.moved_bytes(direction);
  work.rate_unit = "bytes_per_second";
  work.bound = Contender{"memory-copy", "", [&] { return run.copy(); }, ""};
  work.bound_factor = work.work / run.copy_bytes();
  return bench_row(work, options);
}

std::vector<std::string> directions_of(const CodecCase& codec_case) {
  const bool sums = codec_case.dtype != Dtype::kBfloat16;
  std::vector<std::string> choices(kDirections.begin(), kDirections.end() - (sums ? 0 : 1));
  if (codec_case.direction.empty()) return choices;
  if (std::find(choices.begin(), choices.end(), codec_case.direction) == choices.end())
    throw UserError(fmt::format("--direction {} is not available in {}; nearest valid choice: {}",
                                codec_case.direction, dtype_name(codec_case.dtype),
                                nearest_choice(codec_case.direction, choices)));
  return {codec_case.direction};
}

}  // namespace

std::vector<BenchRow> bench_codec(const CodecCase& codec_case, const TimingOptions& options) {
  const std::vector<std::string> directions = directions_of(codec_case);
  std::vector<CodecSpec> specs;
  if (codec_case.codec.empty())
    for (const char* name : {"bf16", "int8", "int4", "fp8e4m3", "fp8e5m2"})
      specs.push_back(codec::parse_codec(name));
  else
    specs.push_back(codec::parse_codec(codec_case.codec, "--codec"));
  if (codec::is_of_layers(specs.front()))
    throw UserError(
        fmt::format("--codec {}: codecs of whole layers have no bound per element to verify; "
                    "nearest valid choice: qsgd1",
                    codec_case.codec));
  memory::Pool pool;
  const Buffer source(pool, codec_case.elements * dtype_bytes(codec_case.dtype)),
      result(pool, source.bytes());
  fill(source, codec_case.dtype, codec_case.elements);
  std::vector<BenchRow> rows;
  for (const CodecSpec& spec : specs) {
    CodecRun run(pool, spec, codec_case, source, result);
    for (const std::string& direction : directions)
      rows.push_back(codec_row(run, spec, codec_case, direction, options));
  }
  return rows;
}

}  // namespace strait::measure
