from torch.amp import custom_fwd
from torch.autograd import Function


class Doubled(Function):
    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
