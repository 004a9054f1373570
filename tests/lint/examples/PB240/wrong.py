from torch.autograd import Function


class DoubleInPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)  # PB240
        x.mul_(2)
        return x.view(-1)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
