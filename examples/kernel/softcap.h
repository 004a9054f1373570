// The mathematics of softcap, element by element: all that a new elementwise operation has to write.
//
// y = c tanh(x / c), which is x near 0 and never leaves (-c, c).
//
// T is double or float: narrower numbers are widened before they come here, and rounded once when they leave. A C++
// compiler and CUDA's read this same file, so what is tested on the CPU is what runs on the GPU.
//
// Source: Gemma Team, Gemma 2, 2024, arXiv:2408.00118, section 2, where it caps attention's and the last layer's logits.

#pragma once

#include <cmath>

#ifdef __CUDACC__
#define PULLBACK_DEVICE __host__ __device__ inline
#else
#define PULLBACK_DEVICE inline
#endif

template <typename T>
PULLBACK_DEVICE T value(T x, T cap) {
  return cap * std::tanh(x / cap);
}

// With u = x / c:   dy/dx = 1 - tanh(u)^2 = 1 / cosh(u)^2 = 4 q / (1 + q)^2,   q = exp(-2 |u|).
//
// The first form loses its digits where tanh(u) rounds to 1, and the second overflows; in the third q is at most 1 and
// nothing is subtracted, so a small slope keeps all its digits.
template <typename T>
PULLBACK_DEVICE T derivative(T x, T cap) {
  const T q = std::exp(T(-2) * std::fabs(x / cap));
  return T(4) * q / ((T(1) + q) * (T(1) + q));
}
