"""Rules PB218 and PB222: gradients by name, and arguments that are declared to have none."""

from __future__ import annotations

from tests.lint.helper import expected, findings, found
from tests.lint.two_methods import function

PRODUCT = ["return x * w"]
DECLARED = 'nondiff_argnames = ("w",)\n'


def test_an_unknown_name_is_found() -> None:
    """On its line, with the names that there are."""
    text = function(PRODUCT, ["return {", "    'x': g,", "    'weight': g,  # PB218", "}"], base="pullback.Function")
    assert found(text) == expected(text)
    (one,) = findings(text)
    assert one.message == "backward returns a gradient for 'weight', which is no argument of forward."
    assert one.expected == "names among x, w"


def test_an_unknown_name_by_a_variable() -> None:
    """The dict is where it was made."""
    text = function(PRODUCT, ["grads = {'y': g}  # PB218", "return grads"], base="pullback.Function")
    assert found(text) == expected(text)


def test_known_names() -> None:
    """Keyword-only ones too."""
    text = function(PRODUCT, ["return {'x': g, 'w': g}"], base="pullback.Function", takes="x, *, w")
    assert found(text, hints=True) == []


def test_names_of_another_kind_of_forward() -> None:
    """Keywords may have any name."""
    text = function(PRODUCT, ["return {'x': g, 'v': g}"], base="pullback.Function", takes="x, **more")
    assert found(text, hints=True) == []


def test_a_gradient_despite_the_declaration() -> None:
    """nondiff_argnames and backward can't both be right."""
    text = function(PRODUCT, ["return g * 2, g * 3  # PB222"], base="pullback.Function", extra=DECLARED)
    assert found(text) == expected(text)


def test_none_as_declared() -> None:
    """And what may be None."""
    for written in ("None", "kernel(g)", "None if g.dim() else g"):
        text = function(PRODUCT, [f"return g * 2, {written}"], base="pullback.Function", extra=DECLARED)
        assert found(text, hints=True) == []


def test_the_same_name_in_a_function_of_pytorch_means_nothing() -> None:
    """It isn't PyTorch's declaration."""
    assert found(function(PRODUCT, ["return g * 2, g * 3"], extra=DECLARED), hints=True) == []
