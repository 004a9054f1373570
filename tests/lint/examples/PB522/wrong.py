import torch
from torch.autograd import Function


class Dropout(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.seed = int(torch.randint(2**31, ()))
        with torch.random.fork_rng():
            torch.manual_seed(ctx.seed)
            return x * (torch.rand_like(x) < 0.5)

    @staticmethod
    def backward(ctx, grad):
        torch.manual_seed(ctx.seed)  # PB522
        return grad * (torch.rand_like(grad) < 0.5)
