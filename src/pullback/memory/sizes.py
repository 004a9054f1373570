"""Bytes, for people."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def size(count: int) -> str:
    """A number of bytes: ``512 B``, ``1.5 MiB``."""
    if count < 1024:
        return f"{count} B"
    value, unit = count / 1024, _UNITS[0]
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.1f} {unit}"
