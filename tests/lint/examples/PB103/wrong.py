import pullback


class Square(pullback.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def double_backward(ctx, gg):  # PB103
        return 2 * gg
