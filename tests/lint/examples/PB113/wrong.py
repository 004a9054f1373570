from torch.autograd import Function


class Squared(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):  # PB113
        (x,) = ctx.saved_tensors
        yield 2 * x * grad
