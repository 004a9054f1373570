from torch.autograd import Function


class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        x.data.mul_(2)  # PB402
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
