"""Operations that people train with, each keeping the least for backward; right to every order, in any layout.

Where PyTorch has the function, names, order and defaults are PyTorch's. One file each: the mathematics with its source,
the plain-PyTorch reference, the Function with its derivation, and the public function.
"""

from __future__ import annotations

from pullback.ops.swiglu import swiglu

__all__ = ["swiglu"]
