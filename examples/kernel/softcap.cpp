// softcap on the CPU: a loop over softcap.h, shared among PyTorch's threads.

#include "elementwise.h"
#include "softcap.h"

constexpr int64_t grain = 1 << 14;  // elements for which a further thread is worth waking

Tensor softcap(const Tensor& argument, double cap) {
  const Tensor x = in_order(argument);
  Tensor y = torch::stable::new_empty(x, x.sizes());
  for_dtype(x.scalar_type(), [&](auto number) {
    using T = decltype(number);
    using W = typename Wide<T>::type;
    const T* from = x.const_data_ptr<T>();
    T* to = y.mutable_data_ptr<T>();
    torch::stable::parallel_for(0, x.numel(), grain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[i] = static_cast<T>(value(static_cast<W>(from[i]), static_cast<W>(cap)));
      }
    });
  });
  return y;
}

Tensor softcap_backward(const Tensor& grad_output, const Tensor& argument, double cap) {
  check_gradient(grad_output, argument);
  const Tensor g = in_order(grad_output);
  const Tensor x = in_order(argument);
  Tensor gx = torch::stable::new_empty(x, x.sizes());
  for_dtype(x.scalar_type(), [&](auto number) {
    using T = decltype(number);
    using W = typename Wide<T>::type;
    const T* cotangent = g.const_data_ptr<T>();
    const T* from = x.const_data_ptr<T>();
    T* to = gx.mutable_data_ptr<T>();
    torch::stable::parallel_for(0, x.numel(), grain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[i] = static_cast<T>(static_cast<W>(cotangent[i]) * derivative(static_cast<W>(from[i]), static_cast<W>(cap)));
      }
    });
  });
  return gx;
}

STABLE_TORCH_LIBRARY_IMPL(pullback_kernel, CPU, m) {
  m.impl("softcap", TORCH_BOX(&softcap));
  m.impl("softcap_backward", TORCH_BOX(&softcap_backward));
}
