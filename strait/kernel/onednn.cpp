#include "strait/kernel/onednn.h"

#include <fmt/format.h>

#include "strait/base/errors.h"

#ifdef STRAIT_ONEDNN
#include <omp.h>

#include <algorithm>
#include <array>
#include <dnnl.hpp>
#include <map>
#include <unordered_map>
#endif

namespace strait::kernel {

#ifdef STRAIT_ONEDNN

namespace {

using dnnl::memory;

template <class C>
constexpr memory::data_type kType = sizeof(C) == 2 ? memory::data_type::bf16
                                                   : memory::data_type::f32;

/// What a plan is made for. Addresses are not part of it.
struct Problem {
  memory::dims a, b, c, a_strides, b_strides, c_strides;
  memory::data_type result;
  bool bias, add;  // add: to what stands in c
  int threads;
  auto operator<=>(const Problem&) const = default;
};

template <class C>
Problem problem_of(const GemmCall<Bfloat16, C>& call, int threads) {
  return {{call.rows, call.depth},
          {call.depth, call.columns},
          {call.rows, call.columns},
          {call.a.row_stride, call.a.column_stride},
          {call.b.row_stride, call.b.column_stride},
          {call.c_stride, 1},
          kType<C>,
          call.bias != nullptr,
          call.accumulate || call.base != nullptr,
          threads};
}

dnnl::matmul plan(const Problem& problem, const dnnl::engine& engine) {
  constexpr auto kNarrow = memory::data_type::bf16;
  const memory::desc a(problem.a, kNarrow, problem.a_strides);
  const memory::desc b(problem.b, kNarrow, problem.b_strides);
  const memory::desc c(problem.c, problem.result, problem.c_strides);
  const memory::desc bias({1, problem.c[1]}, kNarrow, memory::format_tag::ab);
  dnnl::post_ops after;
  if (problem.add) after.append_sum(1.0f);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(after);
  const auto what = problem.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  return dnnl::matmul({what, attributes, engine});
}

/// Of one thread.
class Products {
 public:
  template <class C>
  void run(const GemmCall<Bfloat16, C>& call, int threads) {
    const Problem problem = problem_of(call, threads);
    auto found = plans_.find(problem);
    if (found == plans_.end()) found = plans_.emplace(problem, plan(problem, engine_)).first;
    const auto described = found->second.get_primitive_desc();
    const auto place = [&](dnnl::query what, int index, const void* data) {
      const memory::desc layout(
          *dnnl_primitive_desc_query_md(described, dnnl::convert_to_c(what), index));
      return memory(layout, engine_, const_cast<void*>(data));
    };
    std::unordered_map<int, memory> operands{
        {DNNL_ARG_SRC, place(dnnl::query::src_md, 0, call.a.data)},
        {DNNL_ARG_WEIGHTS, place(dnnl::query::weights_md, 0, call.b.data)},
        {DNNL_ARG_DST, place(dnnl::query::dst_md, 0, call.c)}};
    if (call.bias) operands.emplace(DNNL_ARG_BIAS, place(dnnl::query::weights_md, 1, call.bias));
    found->second.execute(stream_, operands);
    stream_.wait();
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Problem, dnnl::matmul> plans_;
};

/// oneDNN plans for, and runs on, as many threads as OpenMP would give the calling one.
class OpenMpThreads {
 public:
  explicit OpenMpThreads(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
  }
  ~OpenMpThreads() {
    if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
  }
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;

 private:
  int before_;
};

template <class C>
void copy_base(const GemmCall<Bfloat16, C>& call) {
  if (call.base == nullptr || call.base == call.c) return;
  for (int64_t row = 0; row < call.rows; ++row)
    std::copy_n(call.base + row * call.base_stride, call.columns, call.c + row * call.c_stride);
}

}  // namespace

bool has_onednn() {
  static const bool multiplies = [] {
    const memory::dims square{16, 16}, strides{16, 1};
    try {
      for (const auto result : {memory::data_type::bf16, memory::data_type::f32})
        plan({square, square, square, strides, strides, strides, result, true, true, 1},
             dnnl::engine(dnnl::engine::kind::cpu, 0));
    } catch (const dnnl::error&) {  // 2.6 has them for AVX512 and later
      return false;
    }
    return true;
  }();
  return multiplies;
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
}

template <class C>
void onednn_gemm(const GemmCall<Bfloat16, C>& call, int threads) {
  thread_local Products products;
  const OpenMpThreads limit(threads);
  copy_base(call);
  try {
    products.run(call, threads);
  } catch (const dnnl::error& error) {
    throw InternalError(fmt::format("oneDNN: product of {} x {} x {}: {}", call.rows, call.columns,
                                    call.depth, error.what()));
  }
}

#else

bool has_onednn() { return false; }
std::string onednn_version() { return ""; }

template <class C>
void onednn_gemm(const GemmCall<Bfloat16, C>&, int) {
  throw InternalError("this library was built without oneDNN");
}

#endif

template void onednn_gemm<Bfloat16>(const GemmCall<Bfloat16>& call, int threads);
template void onednn_gemm<float>(const GemmCall<Bfloat16, float>& call, int threads);

}  // namespace strait::kernel
