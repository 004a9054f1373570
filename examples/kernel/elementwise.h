// What softcap.cpp and softcap.cu share, and what stays as it is for another elementwise operation: which arguments are
// taken, how a tensor's dtype becomes a C++ type, and which functions a loop may call for several elements at once.
//
// Written against PyTorch's stable C++ interface, whose headers compile in seconds.

#pragma once

#include <cmath>
#include <cstdint>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/Half.h>

// With these declarations g++ computes several elements of a loop in one call, by glibc's vector library: within 4 units
// in the last place, inf and nan as ever. Other compilers call the plain functions, one element at a time.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#if __GLIBC_PREREQ(2, 35)
#define PULLBACK_VECTOR(name)                                      \
  __attribute__((simd("notinbranch"))) double name(double) noexcept; \
  __attribute__((simd("notinbranch"))) float name##f(float) noexcept;
extern "C" {
PULLBACK_VECTOR(exp)
PULLBACK_VECTOR(expm1)
PULLBACK_VECTOR(log)
PULLBACK_VECTOR(log1p)
PULLBACK_VECTOR(tanh)
PULLBACK_VECTOR(erf)
}
#endif
#endif

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The type to compute in: float holds every bfloat16 and float16 exactly, and has digits to spare for the result.
template <typename T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};

// Call run with a number of the C++ type that dtype stands for; each type is compiled, and one of them runs.
template <typename F>
void for_dtype(ScalarType dtype, F run) {
  switch (dtype) {
    case ScalarType::Double:
      return run(double());
    case ScalarType::Float:
      return run(float());
    case ScalarType::BFloat16:
      return run(torch::headeronly::BFloat16());
    case ScalarType::Half:
      return run(torch::headeronly::Half());
    default:
      STD_TORCH_CHECK(
          false, "the operation takes float64, float32, bfloat16 and float16 tensors, and one of ",
          torch::headeronly::toString(dtype), " came");
  }
}

// Loops and kernels read from the first element to the last, whatever the strides were: a transposed or expanded tensor
// has its elements elsewhere. Autograd does hand over expanded gradients: that of sum() has one element in memory.
inline Tensor in_order(const Tensor& x) {
  return torch::stable::contiguous(x);
}

inline void check_gradient(const Tensor& g, const Tensor& x) {
  STD_TORCH_CHECK(
      g.scalar_type() == x.scalar_type() && g.sizes().equals(x.sizes()) && g.is_cuda() == x.is_cuda() &&
          g.get_device_index() == x.get_device_index(),
      "grad_output must have the dtype, the shape and the device of x");
}
