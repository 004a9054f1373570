"""F12: what can't be right is refused by name, never 0 in silence: these refusals, and no others."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from torch.autograd import forward_ad

from pullback.errors import PullbackError
from tests.transforms.matrix.agreement import each_seed, taken_with
from tests.transforms.matrix.compositions import TRANSFORMS, Composition, refusals, under
from tests.transforms.matrix.kind import Kind, Point, Program
from tests.transforms.matrix.kinds import KINDS
from tests.transforms.matrix.test_dual_numbers import chosen, dual, gradients, tracked, unpacked

REFUSED: dict[str, dict[str, tuple[str, ...]]] = {
    "in_place_intermediate": {"PB513": ("vmap",), "PB206": ("grad of grad", "jvp of grad", "jacrev of vjp")},
    "in_place": {"PB513": ("vmap", "grad of vmap", "vmap of grad", "jacrev of vmap", "vmap of vmap", "jvp of vmap")},
    "opaque": {
        "PB510": ("vmap", "grad of vmap", "vmap of grad", "vjp of vmap", "jacrev", "vmap of vmap"),
        "PB511": ("jvp", "vjp of jvp", "jvp of vjp", "grad of jvp"),
        "PB207": ("grad of grad", "vjp of grad", "grad of vjp", "vjp of vjp"),
    },
    "shape_by_data": {"PB510": ("vmap", "vmap of grad", "grad of vmap", "jvp of vmap")},
    "once_alone": {
        "PB511": ("jvp", "jacfwd", "jvp of vmap", "vmap of jvp"),
        "PB207": ("grad of grad", "vjp of vjp", "jacrev of grad", "jacrev of jacrev", "vmap of grad of grad"),
    },
    "opaque_with_jvp": {"PB510": ("vmap", "jacrev"), "PB207": ("grad of grad", "vjp of grad")},
    "nonlinear_backward": {
        "PB511": ("jvp", "jacfwd", "jvp of grad", "grad of jvp", "vmap of jvp", "jvp of vmap", "hessian"),
    },
}
"""Kind, rule, compositions: some of those that `refusals` allows, which are all that the matrix lets pass."""

SAYS = {
    "PB510": "vmap",
    "PB513": "vmap",
    "PB511": "orward mode",
    "PB206": "is being differentiated",
    "PB207": "is being differentiated",
}
"""How the message of each rule names what was asked for."""

CASES = [
    pytest.param(KINDS[name], rule, tuple(composition.split(" of ")), id=f"{name}-{rule}-{composition}")
    for name, rules in REFUSED.items()
    for rule, compositions in rules.items()
    for composition in compositions
]


@each_seed
@pytest.mark.parametrize(("kind", "rule", "composition"), CASES)
def test_refused(kind: Kind, rule: str, composition: Composition, seed: int) -> None:
    """F12: the error names rule, class, transform and remedy, and handlers of PyTorch's own errors catch it."""
    assert rule in refusals(kind, composition), "the matrix takes this for right"
    function = kind.make()
    with pytest.raises(PullbackError) as caught:
        taken_with(function.apply, kind, under(composition), seed)
    text = str(caught.value)
    assert caught.value.rule == rule, text
    assert function.__name__ in text
    assert SAYS[rule] in text
    assert caught.value.remedy in text
    assert isinstance(caught.value, RuntimeError)


@each_seed
@pytest.mark.parametrize("name", ["opaque", "once_alone", "nonlinear_backward"])
@pytest.mark.parametrize("over_reverse", [False, True])
def test_dual_numbers(name: str, over_reverse: bool, seed: int) -> None:
    """F12: dual numbers are refused like torch.func.jvp where forward mode can't be derived."""

    def taken(program: Program, point: Point) -> Any:
        inputs = tracked(point) if over_reverse else point.tensors
        with forward_ad.dual_level():
            given = tuple(dual(point, inputs))
            found = program(*given)
            if over_reverse:
                found = gradients(found.sum(), chosen(point, given))
            return unpacked(found)

    function = KINDS[name].make()
    with pytest.raises(PullbackError, match=rf"PB511[\s\S]*{function.__name__}"):
        taken_with(function.apply, KINDS[name], taken, seed)


def test_most_kinds_are_refused_nothing() -> None:
    """F12: up to two transforms, ten kinds have refusals, and each is of one of the sorts that may."""
    refused = {
        name
        for name, kind in KINDS.items()
        for composition in [*((one,) for one in TRANSFORMS), *product(TRANSFORMS, repeat=2)]
        if refusals(kind, composition)
    }
    assert refused == {
        "in_place",
        "in_place_intermediate",
        "shape_by_data",
        "opaque",
        "opaque_backward",
        "opaque_with_double_backward",
        "opaque_with_jvp",
        "opaque_with_vmap",
        "once_alone",
        "nonlinear_backward",
    }
