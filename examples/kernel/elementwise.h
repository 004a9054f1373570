// What softcap.cpp and softcap.cu share, and what stays as it is for another elementwise operation: which arguments are
// taken, and how a tensor's dtype becomes a C++ type.
//
// Written against PyTorch's stable C++ interface, whose headers compile in seconds.

#pragma once

#include <cstdint>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/Half.h>

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
      STD_TORCH_CHECK(false, "softcap takes float64, float32, bfloat16 and float16 tensors");
  }
}

// Loops and kernels read from the first element to the last, whatever the strides were: a transposed or expanded tensor
// has its elements elsewhere. Autograd does hand over expanded gradients: that of sum() has one element in memory.
inline Tensor in_order(const Tensor& x) {
  return torch::stable::contiguous(x);
}

inline void check_gradient(const Tensor& g, const Tensor& x) {
  STD_TORCH_CHECK(
      g.scalar_type() == x.scalar_type() && g.sizes().equals(x.sizes()) && g.is_cuda() == x.is_cuda(),
      "softcap_backward: grad_output must have the dtype, the shape and the device of x");
}
