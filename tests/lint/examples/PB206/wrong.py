from torch.autograd import Function


class Sinh(Function):
    @staticmethod
    def forward(ctx, x):
        up, down = x.exp(), (-x).exp()
        ctx.save_for_backward(up, down)  # PB206
        return (up - down) / 2

    @staticmethod
    def backward(ctx, grad):
        up, down = ctx.saved_tensors
        return grad * (up + down) / 2
