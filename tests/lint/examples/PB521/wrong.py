from torch.amp import custom_fwd
from torch.autograd import Function


class Scaled(Function):
    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(x, factor):  # PB521
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.factor = inputs

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None
