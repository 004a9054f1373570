"""pullback.nn: state dicts, constructors, copies and pickles are those of torch.nn; the modules run on the ops."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback import nn
from tests.saved_bytes import bytes_kept

TORCHS_HEAD = getattr(torch.nn, "LinearCrossEntropyLoss", None)  # came with torch 2.13
needs_head = pytest.mark.skipif(TORCHS_HEAD is None, reason="this torch has no LinearCrossEntropyLoss")

NORMS: dict[str, tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = {
    "rms": (nn.RMSNorm, torch.nn.RMSNorm, (8,), {}),
    "rms, eps": (nn.RMSNorm, torch.nn.RMSNorm, ([3, 8],), {"eps": 0.1, "dtype": torch.float64}),
    "rms, no weight": (nn.RMSNorm, torch.nn.RMSNorm, (8,), {"elementwise_affine": False}),
    "layer": (nn.LayerNorm, torch.nn.LayerNorm, (8,), {}),
    "layer, no bias": (nn.LayerNorm, torch.nn.LayerNorm, ((3, 8),), {"bias": False}),
    "layer, no parameters": (nn.LayerNorm, torch.nn.LayerNorm, (8, 0.1), {"elementwise_affine": False}),
}
LOSSES: dict[str, tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = {
    "loss": (nn.CrossEntropyLoss, torch.nn.CrossEntropyLoss, (), {}),
    "loss, options": (
        nn.CrossEntropyLoss,
        torch.nn.CrossEntropyLoss,
        (torch.tensor([1.0, 2.0, 0.5]),),
        {"ignore_index": 1, "reduction": "sum", "label_smoothing": 0.1},
    ),
    "loss of each": (nn.CrossEntropyLoss, torch.nn.CrossEntropyLoss, (), {"reduction": "none"}),
}
HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True, "label_smoothing": 0.1},
    "options": {"weight": torch.tensor([1.0, 2.0, 0.5]), "ignore_index": 1, "reduction": "sum"},
    "further axes": {"out_features": (2,), "bias": True},
}


def randomised(module: torch.nn.Module) -> Any:
    """The module with parameters that tell one from the other."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def batch(module: Any) -> tuple[Tensor, ...]:
    """Arguments that a module of the tables above takes."""
    generator = torch.Generator().manual_seed(1)
    if hasattr(module, "normalized_shape"):
        dtype = torch.float32 if module.weight is None else module.weight.dtype
        return (torch.randn(2, 3, 8, generator=generator).to(dtype).requires_grad_(),)
    if hasattr(module, "linear"):
        target = torch.randint(0, 3, (5, *module.out_features), generator=generator)
        return torch.randn(5, 4, generator=generator).requires_grad_(), target
    return torch.randn(5, 3, generator=generator).requires_grad_(), torch.tensor([0, 2, 1, 1, 0])


def results(module: Any) -> list[Tensor]:
    """Output and all gradients."""
    arguments = batch(module)
    output = module(*arguments)
    wanted = [arguments[0], *module.parameters()]
    return [output.detach(), *torch.autograd.grad(output.sin().sum(), wanted)]


def pairs() -> list[Any]:
    """For each module of the tables: makers of ours and of torch's."""
    found = [
        pytest.param(lambda o=o, a=a, k=k: o(*a, **k), lambda t=t, a=a, k=k: t(*a, **k), id=name)
        for name, (o, t, a, k) in {**NORMS, **LOSSES}.items()
    ]
    for name, options in HEADS.items():
        ours, theirs = (
            (lambda k=options: nn.LinearCrossEntropyLoss(4, 3, **k)),
            (lambda k=options: TORCHS_HEAD(4, 3, **k)),
        )
        found.append(pytest.param(ours, theirs, id=f"head, {name}", marks=needs_head))
    return found


both = pytest.mark.parametrize(("ours", "theirs"), pairs())


@both
def test_state_dicts_load_both_ways(ours: Any, theirs: Any) -> None:
    """The state dict of each loads into the other, strictly, and afterwards the two give the same."""
    for source, into in ((ours, theirs), (theirs, ours)):
        given, other = randomised(source()), into()
        other.load_state_dict(given.state_dict(), strict=True)
        assert list(given.state_dict()) == list(other.state_dict())
        torch.testing.assert_close(results(other), results(given), rtol=1e-5, atol=1e-5)


@both
def test_the_repr_is_torchs(ours: Any, theirs: Any) -> None:
    """It reads as torch's module does; in the place of torch's options a head says its form."""
    assert repr(ours()).replace("form=gradients", "options=None") == repr(theirs())


@both
def test_copies_and_pickles(ours: Any, theirs: Any) -> None:
    """A deep copy, a pickle, and a module saved whole by torch are modules of the same class that give the same."""
    del theirs
    module = randomised(ours())
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert type(other) is type(module)
        torch.testing.assert_close(results(other), results(module), rtol=0, atol=0)


@pytest.mark.parametrize(("ours", "theirs", "arguments", "options"), [*NORMS.values(), *LOSSES.values()])
def test_they_are_torchs_modules(ours: Any, theirs: Any, arguments: Any, options: Any) -> None:
    """Code that looks for torch's classes finds them."""
    assert isinstance(ours(*arguments, **options), theirs)


def test_they_run_on_the_operations() -> None:
    """They keep what the operations keep, not what torch's modules do."""
    x = torch.randn(16, 32, requires_grad=True)
    for module, expected in ((nn.RMSNorm(32), 16 * 4), (nn.LayerNorm(32), 16 * 8)):
        assert bytes_kept(lambda m=module: m(x), (x, *module.parameters())) == expected
    target = torch.arange(16)
    assert bytes_kept(lambda: nn.CrossEntropyLoss()(x, target), (x, target)) == 16 * 4
    head = nn.LinearCrossEntropyLoss(32, 100, form="recompute")
    assert bytes_kept(lambda: head(x, target), (x, target, head.linear.weight)) == 16 * 4


@pytest.mark.parametrize("form", ["gradients", "recompute"])
def test_a_head_is_a_linear_layer_and_its_loss(form: Any) -> None:
    """On any torch it gives what the two modules give one after the other."""
    head = randomised(nn.LinearCrossEntropyLoss(4, 3, bias=True, form=form))
    x, target = batch(head)
    plain = torch.nn.functional.cross_entropy(head.linear(x), target)
    wanted = [x, *head.parameters()]
    expected = [plain.detach(), *torch.autograd.grad(plain.sin(), wanted)]
    torch.testing.assert_close(results(head), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
def test_bfloat16_modules(name: str) -> None:
    """A module converted to bfloat16 takes and gives bfloat16."""
    module = getattr(nn, name)(8).bfloat16()
    x = torch.randn(4, 8, dtype=torch.bfloat16, requires_grad=True)
    output = module(x)
    output.sum().backward()
    assert output.dtype == x.grad.dtype == module.weight.grad.dtype == torch.bfloat16


def test_it_is_an_attribute_of_pullback() -> None:
    """pullback.nn is there without an import of its own, with what it says it has."""
    assert pullback.nn is nn
    for name in nn.__all__:
        assert issubclass(getattr(nn, name), torch.nn.Module)
        assert TORCHS_HEAD is None or hasattr(torch.nn, name)
