"""PB522: a method that seeds the generator of the whole program."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis
from pullback.lint.flow import Flow

_SEEDS = frozenset(
    ("torch.manual_seed", "torch.random.manual_seed", "torch.seed", "torch.random.seed", "torch.cuda.manual_seed",
     "torch.cuda.manual_seed_all", "torch.cuda.seed", "torch.cuda.seed_all", "random.seed", "numpy.random.seed")
)  # fmt: skip
_PUTS_BACK = frozenset(("set_rng_state", "set_rng_state_all", "setstate", "set_state", "set_device_states"))


def seeded(analysis: Analysis) -> Iterator[Finding]:
    """PB522: a seed that isn't given inside fork_rng, in a method that doesn't put the generator's state back."""
    for flow in analysis.own_flows():
        calls = [(node, flow.value(node.func).dotted) for node in flow.nodes(ast.Call) if flow.reached(node)]
        if any(dotted.rpartition(".")[2] in _PUTS_BACK for _, dotted in calls):
            continue
        for node, dotted in calls:
            if dotted in _SEEDS and not _is_forked(flow, node):
                yield analysis.finding(
                    "PB522",
                    node,
                    f"{flow.method.name} seeds the generator that the whole program draws from.",
                    where=flow.method.name,
                    expected="with torch.random.fork_rng(): …",
                    got=ast.unparse(node),
                )


def _is_forked(flow: Flow, node: ast.Call) -> bool:
    """Whether a call stands in a ``with`` block that isn't known, or is known to put the state back."""
    for guard in flow.guards(node):
        if guard.kind == "with" and guard.test is not None:
            function = guard.test.func if isinstance(guard.test, ast.Call) else guard.test
            name = flow.value(function).dotted.rpartition(".")[2]
            if not name or "rng" in name or "seed" in name:
                return True
    return False
