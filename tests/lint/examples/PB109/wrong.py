from torch.autograd import Function


class Triple(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backwards(ctx, grad):  # PB109
        return 3 * grad
