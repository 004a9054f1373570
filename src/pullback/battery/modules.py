"""A module whose parameters are in a lower dtype has its own reference: its copy in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from pullback.battery.draws import draws
from pullback.battery.leaves import is_float
from pullback.battery.raised import RAISED
from pullback.battery.randomness import preserved
from pullback.battery.subject import Subject
from pullback.battery.surroundings import neutral


def reference_of(subject: Subject) -> Callable[..., Any] | None:
    """The module in float64; None for other callables, and for modules that draw other numbers in another dtype."""
    module = subject.function
    if not isinstance(module, torch.nn.Module):
        return None
    floats = [tensor for tensor in (*module.parameters(), *module.buffers()) if is_float(tensor)]
    if all(tensor.dtype in (torch.float64, torch.complex128) for tensor in floats):
        return None
    try:
        with preserved(subject.runs_on), neutral():
            if any(draws(subject, case).forward for case in subject.all_cases):
                return None
            return copy.deepcopy(module).double()
    except RAISED:  # what is wrong with it is for the probes to say
        return None
