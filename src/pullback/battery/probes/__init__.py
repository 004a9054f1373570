"""The probes, one module each, and their order: what explains other faults comes first."""

from __future__ import annotations

from pullback.battery.probe import Probe
from pullback.battery.probes import (
    aliases,
    batching,
    changes,
    first_order,
    forward_mode,
    hidden,
    layouts,
    leaks,
    linearity,
    once,
    outputs,
    precision,
    repeats,
    runs,
    saved,
    second_order,
    shapes,
    short_form,
    special_points,
    state,
    subsets,
    ties,
    values,
    writes,
)

TABLE: tuple[Probe, ...] = (
    runs.PROBE,
    hidden.PROBE,
    writes.PROBE,
    repeats.PROBE,
    state.PROBE,
    values.PROBE,
    first_order.PROBE,
    outputs.PROBE,
    subsets.PROBE,
    linearity.PROBE,
    layouts.PROBE,
    precision.PROBE,
    short_form.PROBE,
    second_order.PROBE,
    once.PROBE,
    forward_mode.PROBE,
    batching.PROBE,
    aliases.PROBE,
    shapes.PROBE,
    special_points.PROBE,
    ties.PROBE,
    changes.PROBE,
    saved.PROBE,
    leaks.PROBE,
)
"""Every probe, in the order in which they run."""
