from torch.autograd import Function


class Tripled(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad):
        return grad.mul_(3)  # PB403
