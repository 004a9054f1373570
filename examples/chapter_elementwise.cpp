// Snake, an elementwise activation: y = x + sin(x)^2 and dy/dx = 1 + sin(2 x).
//
// Written against PyTorch's stable C++ interface, whose headers compile in seconds. The arguments are made contiguous
// first, since the loops read memory in order: a transposed or expanded tensor has its elements elsewhere.

#include <cmath>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename T>
void forward_loop(const Tensor& x, Tensor& y) {
  const T* in = x.const_data_ptr<T>();
  T* out = y.mutable_data_ptr<T>();
  const int64_t n = x.numel();
  for (int64_t i = 0; i < n; ++i) {
    const T s = std::sin(in[i]);
    out[i] = in[i] + s * s;
  }
}

template <typename T>
void backward_loop(const Tensor& grad, const Tensor& x, Tensor& dx) {
  const T* g = grad.const_data_ptr<T>();
  const T* in = x.const_data_ptr<T>();
  T* out = dx.mutable_data_ptr<T>();
  const int64_t n = x.numel();
  for (int64_t i = 0; i < n; ++i) {
    out[i] = g[i] * (T(1) + std::sin(T(2) * in[i]));
  }
}

void require_float(const Tensor& x) {
  STD_TORCH_CHECK(
      x.scalar_type() == ScalarType::Float || x.scalar_type() == ScalarType::Double,
      "snake takes float32 and float64 tensors");
}

Tensor snake(const Tensor& argument) {
  require_float(argument);
  const Tensor x = torch::stable::contiguous(argument);
  Tensor y = torch::stable::new_empty(x, x.sizes());
  if (x.scalar_type() == ScalarType::Float) {
    forward_loop<float>(x, y);
  } else {
    forward_loop<double>(x, y);
  }
  return y;
}

Tensor snake_backward(const Tensor& grad_output, const Tensor& argument) {
  require_float(argument);
  STD_TORCH_CHECK(
      grad_output.scalar_type() == argument.scalar_type() && grad_output.sizes().equals(argument.sizes()),
      "snake_backward: grad_output must have the argument's dtype and shape");
  const Tensor grad = torch::stable::contiguous(grad_output);
  const Tensor x = torch::stable::contiguous(argument);
  Tensor dx = torch::stable::new_empty(x, x.sizes());
  if (x.scalar_type() == ScalarType::Float) {
    backward_loop<float>(grad, x, dx);
  } else {
    backward_loop<double>(grad, x, dx);
  }
  return dx;
}

STABLE_TORCH_LIBRARY(pullback_chapter, m) {
  m.def("snake(Tensor x) -> Tensor");
  m.def("snake_backward(Tensor grad_output, Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(pullback_chapter, CPU, m) {
  m.impl("snake", TORCH_BOX(&snake));
  m.impl("snake_backward", TORCH_BOX(&snake_backward));
}
