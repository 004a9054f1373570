"""The plain formula of what is checked, differentiated by autograd: what PyTorch itself makes of the same call.

What PyTorch refuses of its own operators, or rounds as much, is no fault of a Function that is made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.battery.leaves import tensors
from pullback.battery.oracle import oracle_of
from pullback.battery.subject import Subject
from pullback.call.stand_in import ForwardStandIn


def formula_of(subject: Subject) -> Callable[..., Any] | None:
    """The reference or surrogate, or else the class's forward, run outside of its node; None where there is neither.

    Whether autograd can follow it isn't known: a forward that leaves PyTorch gives other gradients, or none.
    """
    known = oracle_of(subject)
    if known is not None or subject.definition is None or subject.definition.forward is None:
        return known
    forward = subject.function.forward
    if subject.definition.style == "setup_context":
        return forward  # type: ignore[no-any-return]  # an attribute of the author's class

    def traced(*args: Any, **kwargs: Any) -> Any:
        flags = [any(tensor.requires_grad for _, tensor in tensors(value, "")) for value in (*args, *kwargs.values())]
        return forward(ForwardStandIn(flags), *args, **kwargs)

    return traced
