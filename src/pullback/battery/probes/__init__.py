"""The probes, one module each, and their order: what explains other faults comes first."""

from __future__ import annotations

from pullback.battery.probe import Probe
from pullback.battery.probes import (
    first_order,
    layouts,
    linearity,
    outputs,
    precision,
    runs,
    second_order,
    short_form,
    subsets,
    values,
)

TABLE: tuple[Probe, ...] = (
    runs.PROBE,
    values.PROBE,
    first_order.PROBE,
    outputs.PROBE,
    subsets.PROBE,
    linearity.PROBE,
    layouts.PROBE,
    precision.PROBE,
    short_form.PROBE,
    second_order.PROBE,
)
"""Every probe, in the order in which they run."""
