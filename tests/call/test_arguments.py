"""F6 and F1: calls by keyword and with defaults give the values and gradients of the call by position."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.call.binding import bound, takes_defaults
from pullback.define.definition import describe
from tests.call.products import STYLES, gradients, product
from tests.function.kinds import leaf
from tests.torch_features import KEYWORDS


def by_position_or_name(arguments: dict[str, Any]) -> list[tuple[list[Any], dict[str, Any]]]:
    """Return every way to pass `arguments`: some by position, the rest by keyword, in any order."""
    names = list(arguments)
    ways = []
    for split in range(len(names) + 1):
        for order in itertools.permutations(names[split:]):
            ways.append(([arguments[name] for name in names[:split]], {name: arguments[name] for name in order}))
    return ways


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("given", [("x", "w", "k"), ("x", "w")], ids=["all", "with a default"])
@pytest.mark.parametrize("style", STYLES)
def test_keywords_in_any_order(style: str, given: tuple[str, ...], create_graph: bool) -> None:
    """F6: values and gradients, each at its argument's place, are those of the call by position."""
    function = product(lambda gx, gw: {"x": gx, "w": gw}, style=style)
    x, w = leaf(3, seed=1), leaf(3, seed=2)
    values = {"x": x, "w": w, "k": 2.0}
    plain = product(style=style, base=torch.autograd.Function).apply(x, w, values["k"] if "k" in given else 3)
    expected = [plain, *gradients(plain, x, w)]
    for args, kwargs in by_position_or_name({name: values[name] for name in given}):
        y = function.apply(*args, **kwargs)
        got = [y, *gradients(y, x, w, create_graph=create_graph)]
        for one, other in zip(got, expected, strict=True):
            assert one is not None
            assert other is not None
            assert torch.allclose(one, other, rtol=1e-15, atol=0), f"args {len(args)}, keywords {list(kwargs)}"


def test_positions_of_gradients_by_keyword() -> None:
    """F6: a tuple of gradients is in forward's order, not in the order of the keywords."""
    x, w = leaf(3, seed=1), leaf(3, seed=2)
    for style in STYLES:
        gx, gw = gradients(product(style=style).apply(k=2, w=w, x=x), x, w)
        assert gx is not None
        assert gw is not None
        assert torch.equal(gx, w * 2)
        assert torch.equal(gw, x * 2)


class Affine(pullback.Function):
    """y = a x + b with defaults in between."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: float = 2.0, b: Any = 1.0) -> Tensor:
        ctx.a = a
        return x * a + b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return (g * ctx.a, None, g if torch.is_tensor(g) and ctx.needs_input_grad[-1] else None)[
            : len(ctx.needs_input_grad)
        ]


@pytest.mark.parametrize(
    ("kwargs", "due"), [({}, 1), ({"a": 4.0}, 2), ({"b": 5.0}, 3), ({"b": 5.0, "a": 4.0}, 3)], ids=str
)
def test_in_ctx_style_the_last_argument_given_counts(kwargs: dict[str, float], due: int) -> None:
    """F6: in ctx style a gradient is due for each argument up to the last that was given, as in torch."""
    x = leaf(3)
    y = Affine.apply(x, **kwargs)
    a, b = kwargs.get("a", 2.0), kwargs.get("b", 1.0)
    assert torch.equal(y, x * a + b)
    assert len(y.grad_fn.needs_input_grad) == due
    (gx,) = gradients(y, x)
    assert gx is not None
    assert torch.equal(gx, torch.full_like(x, a))


def test_a_tensor_by_keyword_behind_a_default() -> None:
    """F6: a tensor given by keyword after an omitted default gets its own gradient."""
    x, b = leaf(3), leaf(3, seed=3)
    gx, gb = gradients(Affine.apply(b=b, x=x), x, b)
    assert gx is not None
    assert gb is not None
    assert gx.tolist() == [2, 2, 2]
    assert gb.tolist() == [1, 1, 1]


def test_positional_only_parameters() -> None:
    """F1: a positional-only parameter can be given by name as in torch, and stays out of a name clash."""

    def make(base: type) -> Any:
        def forward(ctx: Any, x: Tensor, /, k: float) -> Tensor:
            ctx.k = k
            return x * k

        body = {"forward": staticmethod(forward), "backward": staticmethod(lambda ctx, g: (g * ctx.k, None))}
        return type("Scale", (base,), body)

    by_name: list[Any] = [lambda f, x: f.apply(x, k=3.0), lambda f, x: f.apply(x=x, k=3.0)] if KEYWORDS else []
    for call in (lambda f, x: f.apply(x, 3.0), *by_name):
        for base in (torch.autograd.Function, pullback.Function):
            x = leaf(3)
            (gx,) = gradients(call(make(base), x), x)
            assert gx is not None
            assert gx.tolist() == [3, 3, 3]


def keyword_only(base: type) -> Any:
    """Define 2 x with a keyword-only parameter that has a default."""

    def forward(ctx: Any, x: Tensor, *, k: float = 2.0) -> Tensor:
        return x * k

    return type("Scale", (base,), {"forward": staticmethod(forward), "backward": staticmethod(lambda ctx, g: g * 2)})


@pytest.mark.parametrize("by_name", [False, True])
def test_a_keyword_only_default_that_is_left_out(by_name: bool) -> None:
    """F1: forward takes its keyword-only default, however the rest is given, on a first call and on later ones."""
    function = keyword_only(pullback.Function)
    for _ in range(2):
        x = leaf(3)
        (gx,) = gradients(function.apply(x=x) if by_name else function.apply(x), x)
        assert gx is not None
        assert gx.tolist() == [2, 2, 2]


@pytest.mark.parametrize("base", [torch.autograd.Function, pullback.Function])
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda f, x: f.apply(), "missing"),
        (lambda f, x: f.apply(x, x, x, x), "positional arguments?"),
        (
            lambda f, x: f.apply(x, x, scale=3),
            "unexpected keyword argument 'scale'" if KEYWORDS else "keyword argument",
        ),
        (lambda f, x: f.apply(x, x, x=x), "multiple values|too many|unexpected|given by name|argument"),
    ],
)
@pytest.mark.parametrize("style", STYLES)
def test_arguments_that_do_not_fit(style: str, call: Any, text: str, base: type) -> None:
    """F1: wrong arguments are a TypeError that says what is wrong, as in torch."""
    with pytest.raises(TypeError, match=text):
        call(product(style=style, base=base), leaf(3))


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1,), {}, (1,)),
        ((), {"x": 1}, (1,)),
        ((1,), {"c": 3}, (1, 20, 3)),
        ((), {"c": 3, "x": 1}, (1, 20, 3)),
        ((1, 2), {}, (1, 2)),
        ((1,), {"b": None}, (1, None)),
        ((), {"b": 2}, None),
        ((1,), {"d": 2}, None),
        ((1,), {"only": 2}, None),
    ],
)
def test_bound_in_ctx_style(args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any) -> None:
    """Defaults are filled in up to the last argument that was given; None where positions can't say it."""
    body = {"forward": staticmethod(lambda ctx, x, b=20, c=30, *, only=0: x)}
    definition = describe(type("Bound", (pullback.Function,), body))
    assert bound(definition, args, kwargs) == expected
    assert not takes_defaults(definition)


def test_bound_in_setup_context_style() -> None:
    """With setup_context all defaults are filled in, as setup_context gets them all."""
    body = {"forward": staticmethod(lambda x, b=20, c=30: x), "setup_context": staticmethod(lambda ctx, i, o: None)}
    definition = describe(type("Bound", (pullback.Function,), body))
    assert bound(definition, (1,), {}) == (1, 20, 30)
    assert bound(definition, (), {"c": 3, "x": 1}) == (1, 20, 3)
    assert takes_defaults(definition)


def test_bound_with_variadic_arguments() -> None:
    """What *rest takes stays where it is, and no default is filled in behind it."""
    definition = describe(type("Bound", (pullback.Function,), {"forward": staticmethod(lambda ctx, x, b=20, *rest: x)}))
    assert bound(definition, (1, 2, 3, 4), {}) == (1, 2, 3, 4)
    assert bound(definition, (1,), {}) == (1,)


@pytest.mark.parametrize("name", ["ctx", "self", "inputs", "output", "forward", "g", "args", "kwargs"])
def test_parameters_of_any_name(name: str) -> None:
    """F1: a parameter may have a name that means something elsewhere."""
    namespace: dict[str, Any] = {}
    exec(f"def forward(context, x, {name}): return x * {name}", namespace)
    body = {"forward": staticmethod(namespace["forward"]), "backward": staticmethod(lambda context, h: (h * 2, None))}
    function: Any = type("Named", (pullback.Function,), body)
    for _ in range(3):
        x = leaf(3)
        (gx,) = gradients(function.apply(x, 2), x)
        assert gx is not None
        assert gx.tolist() == [2, 2, 2]
