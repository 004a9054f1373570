"""A cached property that ``torch.compile`` can follow: Dynamo doesn't get past the lock of functools' own."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch.compiler import is_dynamo_compiling

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):  # named like the one it stands for
        """``functools.cached_property``; in code that is being traced it is computed each time."""

        def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
            """The value."""
            if is_dynamo_compiling():
                return self.func(instance)
            return super().__get__(instance, owner)
