from torch.autograd import Function


class Double(Function):
    @staticmethod
    def forward(ctx, x, w):
        return 2 * x + w

    @staticmethod
    def backward(ctx, grad):
        return [2 * grad, grad]  # PB202
