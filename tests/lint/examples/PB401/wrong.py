from torch.autograd import Function


class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)  # PB401
        return x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
