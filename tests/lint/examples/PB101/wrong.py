from torch.autograd import Function


class Doubled(Function):
    def forward(self, ctx, x):  # PB101
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
