from torch.autograd import Function


class Gated(Function):
    @staticmethod
    def forward(ctx, x):
        gate = x.sigmoid()
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx, grad):
        x, gate, y = ctx.saved_tensors  # PB236
        return grad * (gate + y * (1 - gate)) + 0 * x
