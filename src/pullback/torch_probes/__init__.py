"""A trial of each private name of PyTorch: whether the installed torch has it, and whether it does what is expected.

The names themselves are in `pullback.torch_private`, and are read there at each trial. `calls` has those that every
call stands on; `transforms` has those that calls under torch.func and in forward mode stand on, `errors` those that
only the words of an error need, `compiling` those that compiled code needs, `ledger` those of `saved_memory`, and
`rerun` that of `recompute`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def tried(probe: Callable[[], bool]) -> tuple[bool, str]:
    """Whether what `probe` looks at behaves as expected, and what was seen."""
    try:
        return (True, "as expected") if probe() else (False, "behaves otherwise")
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


def apart(work: Callable[[], T]) -> T:
    """The result of `work`, run in a thread of its own, where no transform runs, nor any other mode."""
    results: list[T] = []

    def run() -> None:
        # PyTorch warns of itself when forward mode is first entered; where warnings raise, no name is to blame.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(work())

    thread = threading.Thread(target=run, name="pullback-probes")
    thread.start()
    thread.join()
    return results[0]
