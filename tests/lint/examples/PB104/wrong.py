from torch.autograd import Function


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, factor):  # PB104
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.factor = inputs

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None
