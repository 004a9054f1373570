from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function


class Scaled(Function):
    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    @custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        return grad * ctx.factor, None
