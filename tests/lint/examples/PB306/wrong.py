from torch.autograd import Function


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.read = lambda: ctx.saved_tensors[0]  # PB306
        return x**2

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.read()
