import torch
from torch.autograd import Function


class WithMask(Function):
    @staticmethod
    def forward(ctx, x):
        mask = x > 0
        ctx.mark_non_differentiable(mask)  # PB241
        ctx.save_for_backward(x)
        return x.relu(), torch.where(mask, 1.0, 0.0)

    @staticmethod
    def backward(ctx, grad, _):
        (x,) = ctx.saved_tensors
        return grad * (x > 0)
