from torch.autograd import Function


class Product(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        if ctx.needs_input_grad[0]:
            grad_x = grad * w
        grad_w = grad * x if ctx.needs_input_grad[1] else None
        return grad_x, grad_w  # PB233
