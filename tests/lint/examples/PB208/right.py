from torch.autograd import Function


class Product(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        grad_x = grad @ w.t() if ctx.needs_input_grad[0] else None
        grad_w = x.t() @ grad if ctx.needs_input_grad[1] else None
        return grad_x, grad_w
