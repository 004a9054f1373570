import torch
from torch.autograd import Function


class Recomputed(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x * w).exp()

    @staticmethod
    def backward(ctx, grad):
        if not any(ctx.needs_input_grad):
            return None, None
        x, w = [saved.detach().requires_grad_() for saved in ctx.saved_tensors]
        with torch.enable_grad():
            y = (x * w).exp()
        return torch.autograd.grad(y, (x, w), grad)
