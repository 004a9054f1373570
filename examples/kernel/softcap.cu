// softcap on the GPU: a kernel over softcap.h. The mathematics and the checks are those of the CPU.

#include <algorithm>

#include <cuda_runtime.h>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

#include "elementwise.h"
#include "softcap.h"

constexpr int threads = 256;  // in a block

// A grid of at most 2^16 blocks walks over the elements in strides. The index is 64 bits wide: 32 bits end at 2^31
// elements, which a GPU has room for, and then wrap round in silence.
template <typename T>
__global__ void forward_kernel(const T* from, T* to, double cap, int64_t n) {
  using W = typename Wide<T>::type;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * threads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x; i < n; i += stride) {
    to[i] = static_cast<T>(value(static_cast<W>(from[i]), static_cast<W>(cap)));
  }
}

template <typename T>
__global__ void backward_kernel(const T* cotangent, const T* from, T* to, double cap, int64_t n) {
  using W = typename Wide<T>::type;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * threads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x; i < n; i += stride) {
    to[i] = static_cast<T>(static_cast<W>(cotangent[i]) * derivative(static_cast<W>(from[i]), static_cast<W>(cap)));
  }
}

unsigned blocks(int64_t n) {
  return static_cast<unsigned>(std::min<int64_t>((n + threads - 1) / threads, 1 << 16));
}

// The stream that PyTorch is filling. On any other the kernel could start before x is written, or y be read too soon.
cudaStream_t current_stream(const Tensor& x) {
  void* stream = nullptr;
  STD_TORCH_CHECK(
      aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream) == AOTI_TORCH_SUCCESS,
      "softcap: PyTorch has no CUDA stream for the device of x");
  return static_cast<cudaStream_t>(stream);
}

// A launch that fails says so only when it is asked, and else the next call is blamed for it.
void check_launch() {
  const cudaError_t error = cudaGetLastError();
  STD_TORCH_CHECK(error == cudaSuccess, "softcap: the kernel was not launched: ", cudaGetErrorString(error));
}

Tensor softcap(const Tensor& argument, double cap) {
  const torch::stable::accelerator::DeviceGuard guard(argument.get_device_index());
  const Tensor x = in_order(argument);
  Tensor y = torch::stable::new_empty(x, x.sizes());
  const int64_t n = x.numel();
  for_dtype(x.scalar_type(), [&](auto number) {
    using T = decltype(number);
    if (n > 0) {  // a grid of no blocks can't be launched
      forward_kernel<T><<<blocks(n), threads, 0, current_stream(x)>>>(
          x.const_data_ptr<T>(), y.mutable_data_ptr<T>(), cap, n);
      check_launch();
    }
  });
  return y;
}

Tensor softcap_backward(const Tensor& grad_output, const Tensor& argument, double cap) {
  check_gradient(grad_output, argument);
  const torch::stable::accelerator::DeviceGuard guard(argument.get_device_index());
  const Tensor g = in_order(grad_output);
  const Tensor x = in_order(argument);
  Tensor gx = torch::stable::new_empty(x, x.sizes());
  const int64_t n = x.numel();
  for_dtype(x.scalar_type(), [&](auto number) {
    using T = decltype(number);
    if (n > 0) {
      backward_kernel<T><<<blocks(n), threads, 0, current_stream(x)>>>(
          g.const_data_ptr<T>(), x.const_data_ptr<T>(), gx.mutable_data_ptr<T>(), cap, n);
      check_launch();
    }
  });
  return gx;
}

STABLE_TORCH_LIBRARY_IMPL(pullback_kernel, CUDA, m) {
  m.impl("softcap", TORCH_BOX(&softcap));
  m.impl("softcap_backward", TORCH_BOX(&softcap_backward));
}
