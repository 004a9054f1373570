from torch import Tensor
from torch.autograd import Function


class Roll(Function):
    @staticmethod
    def forward(ctx, x: Tensor, shift: int) -> Tensor:
        ctx.shift = shift
        return x.roll(shift)

    @staticmethod
    def backward(ctx, grad):
        return grad.roll(-ctx.shift), None
