import torch
from torch.autograd import Function


class Recomputed(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.sin(x @ w)

    @staticmethod
    def backward(ctx, grad):
        leaves = [
            saved.detach().requires_grad_(needed)
            for saved, needed in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=True)
        ]
        with torch.enable_grad():
            y = torch.sin(leaves[0] @ leaves[1])
            found = iter(torch.autograd.grad(y, [leaf for leaf in leaves if leaf.requires_grad], grad))
        return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)
