import activations
import pytest

NAMES = "GELU LogCosh LogSigmoid SiLU Snake Softplus Softsign Square SquaredReLU Tanhshrink".split()


@pytest.mark.pullback(skip="compiled")
@pytest.mark.parametrize("name", NAMES)
def test_derivatives(name, check_function):
    check_function(getattr(activations, name))
