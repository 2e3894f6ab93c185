// Arithmetic on plain memory: the kernels of codec/ and optim/.
#include <algorithm>
#include <cstring>

#include "strait/codec/error_feedback.h"
#include "strait/device/tensor_arithmetic.h"
#include "strait/optim/adamw.h"
#include "strait/optim/norm.h"
#include "strait/optim/sgd.h"

namespace strait::device {
namespace {

template <class T>
void update_numbers(const UpdateCall& call, int threads) {
  const size_t count = static_cast<size_t>(call.weights.elements);
  const std::span<T> weights(static_cast<T*>(call.weights.data), count);
  const std::span<const T> gradient(static_cast<const T*>(call.gradient.data), count);
  const auto state = [&](int nth) {
    return std::span<T>(static_cast<T*>(call.states[nth]), count);
  };
  const std::span<Bfloat16> rounded(static_cast<Bfloat16*>(call.rounded), call.rounded ? count : 0);
  const OptimizerOptions& options = call.options;
  if (options.kind == "adamw") {
    const optim::AdamWUpdate update{call.learning_rate, options.betas[0],  options.betas[1],
                                    options.eps,        call.weight_decay, call.gradient_scale,
                                    call.step};
    optim::adamw_update({weights, gradient, state(0), state(1), rounded}, update, threads);
  } else {
    const optim::SgdUpdate update{call.learning_rate, options.betas[0], call.weight_decay,
                                  call.gradient_scale};
    optim::sgd_update({weights, gradient, state(0), rounded}, update, threads);
  }
}

template <class T>
std::span<const T> elements(const codec::ConstValues& values) {
  return {static_cast<const T*>(values.data), static_cast<size_t>(values.elements)};
}
template <class T>
std::span<T> elements(const codec::Values& values) {
  return {static_cast<T*>(values.data), static_cast<size_t>(values.elements)};
}

/// Calls work.operator()<double or float>().
template <class Work>
void in_type(Dtype dtype, const Work& work) {
  if (dtype == Dtype::kFloat64)
    work.template operator()<double>();
  else
    work.template operator()<float>();
}

class HostArithmetic final : public Arithmetic {
 public:
  explicit HostArithmetic(int threads) : threads_(threads) {}

  void put(const void* host, void* value, int64_t bytes) override {
    if (bytes > 0) std::memcpy(value, host, static_cast<size_t>(bytes));
  }
  void get(const void* value, void* host, int64_t bytes) override { put(value, host, bytes); }
  void fill_zero(void* value, int64_t bytes) override {
    if (bytes > 0) std::memset(value, 0, static_cast<size_t>(bytes));
  }
  void add(double amount, double* scalar) override { *scalar += amount; }

  void add_squared_norm(const codec::ConstValues& values, double* scalar) override {
    const size_t count = static_cast<size_t>(values.elements);
    if (values.dtype == Dtype::kFloat64)
      *scalar +=
          optim::squared_norm(std::span(static_cast<const double*>(values.data), count), threads_);
    else
      *scalar +=
          optim::squared_norm(std::span(static_cast<const float*>(values.data), count), threads_);
  }

  void update(const UpdateCall& call) override {
    if (call.weights.dtype == Dtype::kFloat64)
      update_numbers<double>(call, threads_);
    else
      update_numbers<float>(call, threads_);
  }

  void subtract(const codec::ConstValues& a, const codec::ConstValues& b,
                const codec::Values& out) override {
    in_type(out.dtype, [&]<class T>() {
      optim::outer_gradient<T>(elements<T>(a), elements<T>(b), elements<T>(out), threads_);
    });
  }
  void scale(double factor, const codec::Values& values) override {
    in_type(values.dtype, [&]<class T>() {
      for (T& value : elements<T>(values))
        value = static_cast<T>(factor * static_cast<double>(value));
    });
  }
  void outer_step(const OuterCall& call) override {
    in_type(call.outer.dtype, [&]<class T>() {
      optim::outer_step<T>(
          {elements<T>(call.sum), elements<T>(call.sent), elements<T>(call.fresh),
           elements<T>(call.velocity), elements<T>(call.outer), elements<T>(call.local)},
          call.update, threads_);
    });
  }
  void exchange(const codec::Values& a, const codec::Values& b) override {
    in_type(a.dtype, [&]<class T>() { std::ranges::swap_ranges(elements<T>(a), elements<T>(b)); });
  }

  void encode(const EncodeCall& call, std::span<uint8_t> encoded, double* not_finite) override {
    const double averaging = codec::feedback_options(call.spec).averaging;
    const int64_t lost =
        call.residual.empty()
            ? codec::encode(call.spec, call.source, encoded, threads_, call.draw)
            : codec::encode_with_feedback(call.spec, call.source,
                                          {call.residual, averaging, call.draw}, encoded, threads_);
    if (not_finite) *not_finite += static_cast<double>(lost);
  }
  void decode(const codec::CodecSpec& spec, std::span<const uint8_t> encoded,
              const codec::Values& out, bool add) override {
    if (add)
      codec::decode_add(spec, encoded, out, threads_);
    else
      codec::decode(spec, encoded, out, threads_);
  }
  void decode_sum(const codec::Pieces& from, const codec::Values& out) override {
    codec::decode_sum(from, out, threads_);
  }

 private:
  const int threads_;
};

}  // namespace

std::unique_ptr<Arithmetic> make_arithmetic(tensor::Device* device, int threads) {
  if (device) return make_tensor_arithmetic(*device);
  return std::make_unique<HostArithmetic>(threads);
}

}  // namespace strait::device
