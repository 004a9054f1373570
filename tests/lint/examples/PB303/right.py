from torch.autograd import Function


class Relu(Function):
    @staticmethod
    def forward(ctx, x):
        mask = x.clamp(min=0) > 0
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask
