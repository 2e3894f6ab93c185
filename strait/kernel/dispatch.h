// Instruction sets that Strait's kernels are compiled for: AVX-512, AVX2 and plain scalar code on
// x86; NEON on Arm. The processor's best is chosen at run time. Include before any Highway header.
//
// A kernel takes one argument structure. Its file writes `name_any(const Call<T>&)` in every
// target's namespace, STRAIT_KERNEL_TARGET behind it and, under HWY_ONCE, STRAIT_KERNEL_DISPATCH,
// which defines strait::kernel::name<float>, name<double> and name<Bfloat16>. Elements of bf16 are
// widened when they are loaded and rounded when they are stored; everything between is fp32.
#pragma once

#include "strait/base/bfloat16.h"

#define HWY_DISABLED_TARGETS \
  (HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#define STRAIT_KERNEL_TARGET(name, Call)                          \
  void name##_f32(const Call<float>& call) { name##_any(call); }  \
  void name##_f64(const Call<double>& call) { name##_any(call); } \
  void name##_bf16(const Call<Bfloat16>& call) { name##_any(call); }

#define STRAIT_KERNEL_DISPATCH(name, Call)          \
  HWY_EXPORT(name##_f32);                           \
  HWY_EXPORT(name##_f64);                           \
  HWY_EXPORT(name##_bf16);                          \
  template <>                                       \
  void name<float>(const Call<float>& call) {       \
    HWY_DYNAMIC_DISPATCH(name##_f32)(call);         \
  }                                                 \
  template <>                                       \
  void name<double>(const Call<double>& call) {     \
    HWY_DYNAMIC_DISPATCH(name##_f64)(call);         \
  }                                                 \
  template <>                                       \
  void name<Bfloat16>(const Call<Bfloat16>& call) { \
    HWY_DYNAMIC_DISPATCH(name##_bf16)(call);        \
  }
