from torch.autograd import Function


class Parts(Function):
    @staticmethod
    def forward(ctx, x):
        return [2 * x, 3 * x]  # PB502

    @staticmethod
    def backward(ctx, first, second):
        return 2 * first + 3 * second
