#include "strait/probe/attention_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "strait/base/bfloat16.h"
#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/kernel/parallel.h"
#include "strait/kernel/partial_attention.h"

namespace strait::measure {

class AttentionWork::Head {
 public:
  virtual ~Head() = default;
  virtual void run() = 0;
  virtual std::string check() const = 0;
};

namespace {

constexpr int64_t kMostTokens = 1024;
constexpr double kLeastFlops = 1e8;  // of a run on a thread: a millisecond or two
constexpr int64_t kMostRepeats = 1000;

double flops_of(const AttentionCase& shape) {
  const double pairs = static_cast<double>(shape.tokens) * static_cast<double>(shape.tokens);
  return 12 * pairs * static_cast<double>(shape.head_width);
}

template <class T>
std::vector<T> numbers(int64_t count, const char* purpose) {
  const RandomStream stream(1, purpose);
  std::vector<T> values(static_cast<size_t>(count));
  for (size_t at = 0; at < values.size(); ++at)
    values[at] = static_cast<T>(static_cast<float>(2 * stream.uniform(at) - 1));
  return values;
}

template <class T>
double number(T value) {
  return static_cast<double>(static_cast<Wide<T>>(value));
}

template <class T>
class TypedHead : public AttentionWork::Head {
 public:
  TypedHead(const AttentionCase& shape, kernel::NarrowProducts products)
      : shape_(shape),
        q_(numbers<T>(elements(), "probe.q")),
        k_(numbers<T>(elements(), "probe.k")),
        v_(numbers<T>(elements(), "probe.v")),
        out_gradient_(numbers<T>(elements(), "probe.out_gradient")),
        rounded_(q_.size()),
        out_(q_.size()),
        dq_(q_.size()),
        dk_(q_.size()),
        dv_(q_.size()),
        log_sum_exp_(static_cast<size_t>(shape.tokens)),
        delta_(static_cast<size_t>(shape.tokens)) {
    rows_.queries = rows_.first = shape.tokens;
    rows_.head_width = rows_.q_stride = rows_.kv_stride = shape.head_width;
    rows_.q = q_.data();
    rows_.k = k_.data();
    rows_.v = v_.data();
    rows_.log_sum_exp = log_sum_exp_.data();
    rows_.products = products;
  }

  void run() override {
    const int64_t tokens = shape_.tokens, width = shape_.head_width;
    kernel::partial_attention<T>({rows_, tokens, 0, out_.data(), width});
    std::ranges::transform(out_, rounded_.begin(), [](Wide<T> x) { return static_cast<T>(x); });
    kernel::attention_delta<T>(
        {tokens, width, rounded_.data(), width, out_gradient_.data(), width, delta_.data()});
    for (std::vector<Wide<T>>* sums : {&dq_, &dk_, &dv_}) std::ranges::fill(*sums, Wide<T>(0));
    kernel::PartialAttentionBackwardCall<T> call;
    call.rows = rows_;
    call.keys = tokens;
    call.out_gradient = out_gradient_.data();
    call.out_gradient_stride = call.dq_stride = call.kv_gradient_stride = width;
    call.delta = delta_.data();
    call.dq = dq_.data();
    call.dk = dk_.data();
    call.dv = dv_.data();
    kernel::partial_attention_backward(call);
  }

  std::string check() const override {
    for (const int64_t query : {int64_t{0}, shape_.tokens / 2, shape_.tokens - 1})
      if (const std::string failure = check_row(query); !failure.empty()) return failure;
    for (const int64_t column : {int64_t{0}, shape_.head_width - 1})
      if (const std::string failure = check_column(column); !failure.empty()) return failure;
    return "";
  }

 private:
  int64_t elements() const { return shape_.tokens * shape_.head_width; }
  size_t at(int64_t row, int64_t column) const {
    return static_cast<size_t>(row * shape_.head_width + column);
  }
  static double wide_roundoff() { return sizeof(Wide<T>) == 8 ? 0x1p-53 : 0x1p-24; }
  /// Of one probability, relative: its score, a sum of `head_width` products of numbers below 1
  /// over the root of that many, its exponential function, and bf16's own rounding.
  double roundoff() const {
    const double width = static_cast<double>(shape_.head_width);
    const double score = (width + 2) * std::sqrt(width) * wide_roundoff();
    return 2 * score + 8 * wide_roundoff() + (sizeof(T) == 2 ? 0x1p-8 : 0.0);
  }

  /// A row of the result is a mean of values below 1.
  std::string check_row(int64_t query) const {
    std::vector<double> mean(static_cast<size_t>(shape_.head_width), 0.0);
    double sum = 0;
    for (int64_t key = 0; key < shape_.tokens; ++key) {
      double score = 0;
      for (int64_t column = 0; column < shape_.head_width; ++column)
        score += number(q_[at(query, column)]) * number(k_[at(key, column)]);
      const double chance = std::exp(score / std::sqrt(static_cast<double>(shape_.head_width)));
      sum += chance;
      for (size_t column = 0; column < mean.size(); ++column)
        mean[column] += chance * number(v_[at(key, static_cast<int64_t>(column))]);
    }
    const double bound = roundoff() + static_cast<double>(shape_.tokens) * wide_roundoff();
    for (size_t column = 0; column < mean.size(); ++column) {
      const double want = mean[column] / sum,
                   have = static_cast<double>(out_[at(query, static_cast<int64_t>(column))]);
      if (!(std::abs(want - have) <= bound))
        return fmt::format("attention of query {}, column {} is {}, by its definition {}", query,
                           column, have, want);
    }
    return "";
  }

  /// Probabilities of a query add up to 1, so gradients of values add up to those of results.
  std::string check_column(int64_t column) const {
    double want = 0, have = 0, size = 0;
    for (int64_t row = 0; row < shape_.tokens; ++row) {
      want += number(out_gradient_[at(row, column)]);
      have += static_cast<double>(dv_[at(row, column)]);
      size += std::abs(number(out_gradient_[at(row, column)]));
      for (const auto* gradient : {&dq_, &dk_})
        if (!std::isfinite(static_cast<double>((*gradient)[at(row, column)])))
          return fmt::format("a gradient of attention in row {} is not finite", row);
    }
    const double bound = roundoff() + static_cast<double>(shape_.tokens) * wide_roundoff();
    if (std::abs(want - have) <= bound * size) return "";
    return fmt::format("gradients of values add up to {} in column {}, those of results to {}",
                       have, column, want);
  }

  AttentionCase shape_;
  kernel::AttentionCall<T> rows_;
  std::vector<T> q_, k_, v_, out_gradient_, rounded_;
  std::vector<Wide<T>> out_, dq_, dk_, dv_, log_sum_exp_, delta_;
};

std::unique_ptr<AttentionWork::Head> make_head(const AttentionCase& shape, Dtype dtype,
                                               kernel::NarrowProducts products) {
  if (dtype == Dtype::kFloat64) return std::make_unique<TypedHead<double>>(shape, products);
  if (dtype == Dtype::kBfloat16) return std::make_unique<TypedHead<Bfloat16>>(shape, products);
  return std::make_unique<TypedHead<float>>(shape, products);
}

}  // namespace

AttentionCase attention_of(const std::optional<Run>& run) {
  if (!run) return {};
  const ShapeOptions& shape = run->model.shape;
  return {std::clamp<int64_t>(shape.context, 1, kMostTokens), shape.head_elements()};
}

AttentionWork::AttentionWork(const AttentionCase& shape, Dtype dtype, int64_t threads,
                             kernel::NarrowProducts products)
    : shape_(shape),
      repeats_(static_cast<int64_t>(std::clamp(std::ceil(kLeastFlops / flops_of(shape)), 1.0,
                                               static_cast<double>(kMostRepeats)))) {
  for (int64_t thread = 0; thread < threads; ++thread)
    heads_.push_back(make_head(shape, dtype, products));
}

AttentionWork::~AttentionWork() = default;

void AttentionWork::run() {
  const int64_t threads = std::ssize(heads_);
  kernel::parallel_ranges(threads, 1, static_cast<int>(threads), [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head)
      for (int64_t time = 0; time < repeats_; ++time) heads_[static_cast<size_t>(head)]->run();
  });
}

double AttentionWork::flops() const {
  return flops_of(shape_) * static_cast<double>(repeats_) * static_cast<double>(heads_.size());
}

std::string AttentionWork::check() const { return heads_.front()->check(); }

}  // namespace strait::measure
