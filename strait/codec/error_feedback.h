// Error feedback: what a codec loses is kept and sent with the next buffer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strait/codec/codec.h"

namespace strait::codec {

/// The LoCo form (Xie et al. 2024, as in DeepSpeed): averaging 0 is classic error feedback, by
/// which the sum of what is decoded equals the sum of what is given less the last residual.
struct ErrorFeedbackOptions {
  double averaging = 0.8;      // beta, in [0, 1)
  int64_t reset_every = 1024;  // encodes after which the residual becomes 0 again; 0: never
};

/// What residuals of a codec want: sparse codecs the classic form without resets, because most of
/// what a residual holds waits to be sent; all others the LoCo form.
inline ErrorFeedbackOptions feedback_options(const CodecSpec& spec) {
  return is_sparse(spec) ? ErrorFeedbackOptions{0.0, 0} : ErrorFeedbackOptions{};
}

/// A residual that its user keeps: e, and beta. And what the codec draws from.
struct Residual {
  std::span<float> values;  // of the elements of the source
  double averaging = ErrorFeedbackOptions{}.averaging;
  Draw draw = {};
};

/// Encodes x + e as codec::encode does and updates the residual e (all in fp32):
///   y = x + e;  piece = encode(y);  e = beta e + (1 - beta) (y - decode(piece))
/// so that the sum of what is decoded is the sum of what is given less the last e / (1 - beta).
/// When elements are not finite (their count is returned) the residual becomes 0. Errors:
/// InternalError when lengths do not fit or for `none`.
[[nodiscard]] int64_t encode_with_feedback(const CodecSpec& spec, const ConstValues& source,
                                           const Residual& residual, std::span<uint8_t> encoded,
                                           int threads = 1);

/// The residual of one buffer, with resets; one object per buffer and hop. Memory: 4 bytes per
/// element. Not thread-safe.
class ErrorFeedback {
 public:
  /// Residual of zeros. Errors: UserError when averaging is outside [0, 1) or reset_every < 0.
  explicit ErrorFeedback(int64_t elements, ErrorFeedbackOptions options = {});

  /// encode_with_feedback with this residual, which becomes 0 again when its encodes are due or
  /// when an element is not finite.
  [[nodiscard]] int64_t encode(const CodecSpec& spec, const ConstValues& source,
                               std::span<uint8_t> encoded, int threads = 1);

  /// e = 0, counting anew: for every rank that skips a step, whoever saw the cause.
  void reset();
  /// e *= factor, when what is encoded is scaled otherwise from now on.
  void scale(float factor);

  /// For checkpoints: the residual and how many encodes it has seen since it was 0.
  std::span<const float> residual() const { return residual_; }
  int64_t encodes() const { return encodes_; }
  void restore(std::span<const float> residual, int64_t encodes);

 private:
  ErrorFeedbackOptions options_;
  std::vector<float> residual_;
  int64_t encodes_ = 0;
};

}  // namespace strait::codec
