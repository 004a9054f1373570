from torch.autograd import Function


class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def vjp(ctx, grad):
        return grad + grad
