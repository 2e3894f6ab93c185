#include "strait/codec/error_feedback.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "strait/base/errors.h"
#include "strait/codec/ranges.h"
#include "strait/kernel/parallel.h"

namespace strait::codec {
namespace {

constexpr int64_t kChunkElements = 2048;
constexpr int64_t kSplitElements = int64_t{1} << 14;

template <class T>
void add_source(const T* source, int64_t count, float* sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<float>(source[i]);
}

void add_source(const ConstValues& source, int64_t begin, int64_t end, float* sums) {
  if (source.dtype == Dtype::kFloat32)
    return add_source(static_cast<const float*>(source.data) + begin, end - begin, sums);
  if (source.dtype == Dtype::kFloat64)
    return add_source(static_cast<const double*>(source.data) + begin, end - begin, sums);
  const uint16_t* bits = static_cast<const uint16_t*>(source.data) + begin;
  for (int64_t i = 0; i < end - begin; ++i)
    sums[i] += std::bit_cast<float>(uint32_t{bits[i]} << 16);
}

/// The piece as a whole, whose elements cannot be chosen chunk by chunk.
int64_t encode_sparse_with_feedback(const CodecSpec& spec, const ConstValues& source,
                                    const Residual& residual, std::span<uint8_t> encoded) {
  const float keep = static_cast<float>(residual.averaging), take = 1.0f - keep;
  std::vector<float> sums(residual.values.begin(), residual.values.end()), decoded(sums.size());
  add_source(source, 0, source.elements, sums.data());
  const int64_t lost =
      encode(spec, {sums.data(), Dtype::kFloat32, source.elements}, encoded, 1, residual.draw);
  decode(spec, encoded, {decoded.data(), Dtype::kFloat32, source.elements});
  for (size_t i = 0; i < sums.size(); ++i)
    residual.values[i] =
        lost > 0 ? 0.0f : keep * residual.values[i] + take * (sums[i] - decoded[i]);
  return lost;
}

}  // namespace

int64_t encode_with_feedback(const CodecSpec& spec, const ConstValues& source,
                             const Residual& residual, std::span<uint8_t> encoded, int threads) {
  ensure(spec.kind != CodecKind::kNone, "error feedback: `none` loses nothing");
  ensure(source.elements == static_cast<int64_t>(residual.values.size()),
         "error feedback: the buffer is not as long as its residual");
  ensure(static_cast<int64_t>(encoded.size()) == encoded_bytes(spec, source.elements),
         "error feedback: the piece has another length");
  ensure(source.dtype == Dtype::kFloat32 || source.dtype == Dtype::kFloat64 ||
             source.dtype == Dtype::kBfloat16,
         "error feedback: the source is fp32, fp64 or bf16");
  if (is_sparse(spec)) return encode_sparse_with_feedback(spec, source, residual, encoded);
  const int64_t unit = range_unit(spec), chunk = (kChunkElements + unit - 1) / unit * unit;
  const int64_t split = (kSplitElements + chunk - 1) / chunk * chunk;
  const float keep = static_cast<float>(residual.averaging), take = 1.0f - keep;
  std::atomic<int64_t> lost = 0;
  kernel::parallel_ranges(source.elements, split, threads, [&](int64_t first, int64_t last) {
    const size_t room = static_cast<size_t>(std::min(chunk, last - first));
    std::vector<float> sums(room), decoded(room);
    for (int64_t begin = first; begin < last; begin += chunk) {
      const int64_t end = std::min(begin + chunk, last);
      float* kept = residual.values.data() + begin;
      std::copy_n(kept, end - begin, sums.data());
      add_source(source, begin, end, sums.data());
      lost += encode_range({spec, sums.data(), Dtype::kFloat32, encoded.data(), source.elements,
                            begin, end, false, residual.draw});
      decode_range({spec, encoded.data(), decoded.data(), Dtype::kFloat32, false, source.elements,
                    begin, end});
      for (int64_t i = 0; i < end - begin; ++i)
        kept[i] = keep * kept[i] + take * (sums[i] - decoded[i]);
    }
  });
  if (lost > 0) std::fill(residual.values.begin(), residual.values.end(), 0.0f);
  return lost;
}

ErrorFeedback::ErrorFeedback(int64_t elements, ErrorFeedbackOptions options)
    : options_(options), residual_(static_cast<size_t>(elements)) {
  if (!(options.averaging >= 0 && options.averaging < 1))
    throw UserError(
        fmt::format("error feedback: averaging {} is not in [0, 1); nearest valid choice: {}",
                    options.averaging, options.averaging < 0 ? "0" : "0.99"));
  if (options.reset_every < 0)
    throw UserError(
        fmt::format("error feedback: reset_every {} is negative; nearest valid choice: 0",
                    options.reset_every));
}

int64_t ErrorFeedback::encode(const CodecSpec& spec, const ConstValues& source,
                              std::span<uint8_t> encoded, int threads) {
  const int64_t lost =
      encode_with_feedback(spec, source, {residual_, options_.averaging}, encoded, threads);
  ++encodes_;
  if (lost > 0 || encodes_ == options_.reset_every) reset();
  return lost;
}

void ErrorFeedback::reset() {
  std::fill(residual_.begin(), residual_.end(), 0.0f);
  encodes_ = 0;
}

void ErrorFeedback::scale(float factor) {
  for (float& value : residual_) value *= factor;
}

void ErrorFeedback::restore(std::span<const float> residual, int64_t encodes) {
  ensure(residual.size() == residual_.size(), "error feedback: the residual has another length");
  std::copy(residual.begin(), residual.end(), residual_.begin());
  encodes_ = encodes;
}

}  // namespace strait::codec
