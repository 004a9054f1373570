from torch.autograd import Function


class Triple(Function):
    @staticmethod
    def foward(ctx, x):  # PB107
        return 3 * x

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad
