from torch.autograd import Function


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, factor):
        Scaled.factor = factor  # PB504
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return grad * Scaled.factor, None
