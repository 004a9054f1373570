import torch
from torch.autograd import Function


class FirstRow(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x[0].clone()

    @staticmethod
    def backward(ctx, grad):
        grad_x = torch.zeros(ctx.shape, dtype=grad.dtype, device=grad.device)
        grad_x[0] = grad
        return grad_x
