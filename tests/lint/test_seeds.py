"""Rule PB522: seeds of the generator that the whole program draws from."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, expected, findings, found


def backward(*lines: str) -> str:
    """A Function with these lines in its backward."""
    body = "\n".join(f"        {line}" for line in lines)
    return (
        f"{HEAD}import random\nimport numpy as np\nfrom elsewhere import seeded\n\nclass Drawn(Function):\n"
        "    @staticmethod\n    def forward(ctx, x: torch.Tensor):\n        ctx.seed = 3\n        return x * 2\n"
        f"    @staticmethod\n    def backward(ctx, g):\n{body}\n        return g * torch.rand_like(g)\n"
    )


@pytest.mark.parametrize(
    "seed",
    [
        "torch.manual_seed(ctx.seed)",
        "torch.cuda.manual_seed_all(1)",
        "random.seed(1)",
        "np.random.seed(1)",
        "torch.seed()",
    ],
)
def test_a_seed_for_the_whole_program_is_found(seed: str) -> None:
    """Of torch's, Python's or NumPy's generator."""
    text = backward(f"{seed}  # PB522")
    assert found(text) == expected(text)
    (finding,) = findings(text)
    assert finding.message == "backward seeds the generator that the whole program draws from."
    assert finding.got == seed


@pytest.mark.parametrize(
    "lines",
    [
        ["with torch.random.fork_rng():", "    torch.manual_seed(ctx.seed)"],
        ["with torch.random.fork_rng(), torch.no_grad():", "    torch.manual_seed(ctx.seed)"],
        ["with seeded():", "    torch.manual_seed(ctx.seed)"],
        ["state = torch.get_rng_state()", "torch.manual_seed(ctx.seed)", "torch.set_rng_state(state)"],
        ["generator = torch.Generator().manual_seed(ctx.seed)"],
        ["random.Random(1).seed(2)"],
    ],
)
def test_a_seed_that_is_taken_back_is_right(lines: list[str]) -> None:
    """fork_rng, a state that is put back, or a generator of its own."""
    assert found(backward(*lines)) == []


def test_a_block_that_puts_nothing_back_is_no_excuse() -> None:
    """torch.no_grad leaves the generator alone."""
    text = backward("with torch.no_grad():", "    torch.manual_seed(ctx.seed)  # PB522")
    assert found(text) == expected(text)
