from torch.autograd import Function
from torch.cuda.amp import custom_fwd


class Doubled(Function):
    @staticmethod
    @custom_fwd  # PB540
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
