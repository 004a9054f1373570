import torch
from torch.autograd import Function


class Recomputed(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.sin(x @ w)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        with torch.enable_grad():
            y = torch.sin(x @ w)
            grad_x, grad_w = torch.autograd.grad(y, (x, w), grad)  # PB234
        return grad_x, grad_w
