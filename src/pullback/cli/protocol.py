"""What the command line and a worker say to each other: one job to the worker, JSON lines back.

Messages of a worker, by ``kind``, in the order in which they come:

* ``ready``: the engine is imported. ``probes``: pairs of a probe's name and what it proves.
* ``fatal``: the job can't be done at all. ``message``.
* ``unloadable``: importing the target raised, or it lacks what was named. ``finding``, ``missing`` (whether the target
  isn't there at all).
* ``loaded``: ``functions`` (names, in order), ``skipped`` (sentences about those that are left out), ``unmet``
  (those of them that are about what was named), and ``lacking`` (for each name that can't be checked at all its
  ``finding`` and ``missing``).
* ``function``: the next Function begins. ``name``, ``location``.
* ``probe``: its next probe begins. ``name``.
* ``report``: it is finished. ``report``.
* ``done``: there is nothing left to do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one worker is to do.

    Attributes:
        source: A path to a Python file, or a module's dotted name; empty to list the probes and end.
        is_file: Which of the two it is.
        names: Members to check, wherever they were defined.
        whole: Whether to check every Function that is defined there, too.
        engine: The module that finds Functions and checks them.
        only: The probes to run; empty for all.
        skip: The probes to leave out.
        orders: The highest order of derivatives to prove.
        seed: The seed of everything random.
        samples: ``module:mapping`` of samples, or empty.
        finished: Functions that an earlier worker has reported.
        left_out: Function -> probes that ended an earlier worker.
    """

    source: str
    is_file: bool = True
    names: tuple[str, ...] = ()
    whole: bool = True
    engine: str = "pullback.battery.engine"
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    orders: int = 2
    seed: int = 0
    samples: str = ""
    finished: tuple[str, ...] = ()
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> str:
        """The job as one JSON text."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        """The job that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        left_out = {name: tuple(probes) for name, probes in data["left_out"].items()}
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        return Job(**{**values, "left_out": left_out})


def encode(kind: str, **content: object) -> bytes:
    """One message as a line."""
    return json.dumps({"kind": kind, **content}).encode() + b"\n"


def decode(line: bytes) -> Message | None:
    """The message of a line; None for a line that isn't one (something printed before the stream was set apart)."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "kind" in message else None
