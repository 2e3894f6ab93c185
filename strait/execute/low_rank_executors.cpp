// Executors of a reduction by factors of low rank, on plain memory.
#include <algorithm>
#include <cmath>
#include <span>

#include "strait/base/random.h"
#include "strait/compression/low_rank.h"
#include "strait/execute/environment.h"
#include "strait/strategy/finish/step_values.h"
#include "strait/strategy/sharding/low_rank.h"

namespace strait::execute {
namespace {

using runtime::Execute;
using runtime::Instance;
using strategy::LowRankRun;
using strategy::LowRankUnit;

template <class T>
T* numbers(void* data) {
  return static_cast<T*>(data);
}

/// Where a run stands in the unit, in the left factors, in the right ones and in those that are
/// kept; nullptr: in what the kernel has not.
template <class T>
struct At {
  T* gradient;
  T* left;
  T* right;
  T* kept;
  int64_t first = 0;
};

template <class T>
T* behind(T* data, int64_t count) {
  return data == nullptr ? nullptr : data + count;
}

/// Calls use(run, At) for every run.
template <class T, class Use>
void for_each_run(const LowRankUnit& unit, At<T> at, const Use& use) {
  for (const LowRankRun& run : unit) {
    use(run, at);
    at.gradient += run.elements;
    at.left += run.left_elements();
    at.right = behind(at.right, run.right_elements());
    at.kept = behind(at.kept, run.kept_elements());
    at.first += run.elements;
  }
}

compression::LowRankShape shape_of(const LowRankRun& run) {
  return {run.rows, run.columns(), run.rank};
}

template <class T>
std::span<T> span_of(T* data, int64_t count) {
  return {data, static_cast<size_t>(count)};
}

/// What is not finite becomes 0; returns how many elements are not.
template <class T>
int64_t clean(std::span<T> values) {
  int64_t lost = 0;
  for (T& value : values) {
    if (std::isfinite(static_cast<float>(value))) continue;
    value = 0;
    ++lost;
  }
  return lost;
}

template <class T>
void project_right(uint64_t seed, const LowRankUnit& unit, const Instance& instance) {
  const float* residual = numbers<float>(instance.read(strategy::kProjectResidual));
  const runtime::Bound& kept = *instance.find_write(strategy::kProjectFactors);
  const uint64_t key =
      RandomStream(seed, instance.array(kept).name, static_cast<uint64_t>(kept.index)).key();
  int64_t lost = 0;
  const At<T> begin{numbers<T>(instance.write(strategy::kProjectedGradient)),
                    numbers<T>(instance.write(strategy::kProjectedLeft)), nullptr,
                    numbers<T>(kept.data)};
  for_each_run(unit, begin, [&](const LowRankRun& run, const At<T>& at) {
    const std::span<T> gradient = span_of(at.gradient, run.elements);
    if (run.rank == 0) {
      lost += clean(gradient);
      std::ranges::copy(gradient, at.left);
      return;
    }
    for (size_t i = 0; residual != nullptr && i < gradient.size(); ++i)
      gradient[i] += static_cast<T>(residual[static_cast<size_t>(at.first) + i]);
    lost += clean(gradient);
    const std::span<T> right = span_of(at.kept, run.right_elements());
    compression::fill_right<T>(shape_of(run), right, mix64(key ^ static_cast<uint64_t>(at.first)));
    compression::project_right<T>(shape_of(run), gradient, right,
                                  span_of(at.left, run.left_elements()));
  });
  double* agreed = numbers<double>(instance.write(strategy::kProjectAgreed));
  agreed[strategy::kNotFinite] += static_cast<double>(lost);
}

template <class T>
void project_left(const LowRankUnit& unit, const Instance& instance) {
  const At<T> begin{numbers<T>(instance.read(strategy::kLeftGradient)),
                    numbers<T>(instance.write(strategy::kLeftFactors)),
                    numbers<T>(instance.write(strategy::kLeftRight)), nullptr};
  for_each_run(unit, begin, [&](const LowRankRun& run, const At<T>& at) {
    if (run.rank == 0) return;
    const std::span<T> left = span_of(at.left, run.left_elements());
    compression::orthonormalise<T>(shape_of(run), left);
    compression::project_left<T>(shape_of(run), span_of(at.gradient, run.elements), left,
                                 span_of(at.right, run.right_elements()));
  });
}

template <class T>
void expand_factors(const LowRankUnit& unit, const Instance& instance) {
  const double ranks =
      static_cast<double>(instance.program->groups[static_cast<size_t>(instance.op->group)].size);
  float* residual = numbers<float>(instance.write(strategy::kExpandResidual));
  std::vector<T> sum;
  const At<T> begin{numbers<T>(instance.write(strategy::kExpandedGradient)),
                    numbers<T>(instance.read(strategy::kExpandLeft)),
                    numbers<T>(instance.read(strategy::kExpandRight)),
                    numbers<T>(instance.write(strategy::kExpandKept))};
  for_each_run(unit, begin, [&](const LowRankRun& run, const At<T>& at) {
    if (run.rank == 0) {
      std::copy_n(at.left, run.elements, at.gradient);
      return;
    }
    sum.resize(static_cast<size_t>(run.elements));
    compression::expand<T>(shape_of(run), span_of(at.left, run.left_elements()),
                           span_of(at.right, run.right_elements()), sum);
    for (size_t i = 0; residual != nullptr && i < sum.size(); ++i)
      residual[static_cast<size_t>(at.first) + i] =
          static_cast<float>(at.gradient[i] - sum[i] / static_cast<T>(ranks));
    std::ranges::copy(sum, at.gradient);
    std::fill(std::copy_n(at.right, run.right_elements(), at.kept), at.kept + run.kept_elements(),
              T());
  });
}

}  // namespace

void add_low_rank_executors(runtime::Executors& executors, uint64_t seed) {
  const auto add = [&](const program::Kernel& kernel, int gradient, auto execute) {
    executors.add(kernel, [=](const program::Program& program, const program::Op& op) {
      const program::Operand* operand = program::operand_in(op.writes, gradient);
      if (operand == nullptr) operand = program::operand_in(op.reads, gradient);
      const bool wide =
          program.arrays[static_cast<size_t>(operand->array)].dtype == Dtype::kFloat64;
      return Execute([=, unit = strategy::parse_low_rank(program::attribute<std::string>(
                             op, strategy::kLowRankUnit))](const Instance& instance) {
        wide ? execute(double(), unit, instance) : execute(float(), unit, instance);
      });
    });
  };
  add(strategy::kProjectRight, strategy::kProjectedGradient,
      [seed](auto type, const LowRankUnit& unit, const Instance& instance) {
        project_right<decltype(type)>(seed, unit, instance);
      });
  add(strategy::kProjectLeft, strategy::kLeftGradient,
      [](auto type, const LowRankUnit& unit, const Instance& instance) {
        project_left<decltype(type)>(unit, instance);
      });
  add(strategy::kExpandFactors, strategy::kExpandedGradient,
      [](auto type, const LowRankUnit& unit, const Instance& instance) {
        expand_factors<decltype(type)>(unit, instance);
      });
}

}  // namespace strait::execute
