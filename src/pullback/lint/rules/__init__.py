"""The rules of the linter: each a function from what is known of one Function to what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis
from pullback.lint.rules import (
    allocation,
    attributes,
    calls,
    companions,
    containers,
    counts,
    declared,
    definition,
    flags,
    gradients,
    hoards,
    kept,
    layouts,
    named,
    outputs,
    recomputing,
    saved,
    saving,
    second_order,
    seeds,
    state,
    unset,
    writes,
)

Check = Callable[[Analysis], Iterator[Finding]]
"""One rule, or several that look at the same thing."""

CHECKS: tuple[Check, ...] = (
    calls.not_applied,
    calls.wrong_count,
    definition.bound,
    definition.twofold,
    definition.styles,
    definition.double_backward,
    definition.autocast,
    definition.old_autocast,
    containers.returned,
    state.kept,
    attributes.unknown,
    counts.gradients,
    counts.cotangents,
    gradients.kinds,
    gradients.undue,
    gradients.order,
    gradients.nothing,
    named.unknown,
    named.declared,
    companions.inputs,
    companions.tangents,
    outputs.ignored,
    flags.wrong,
    flags.absent,
    flags.unset,
    flags.undefined,
    saving.counts,
    saving.unread,
    unset.attributes_of_ctx,
    saving.tangents,
    saving.old_name,
    declared.dirty,
    declared.non_differentiable,
    declared.twice,
    recomputing.unasked,
    recomputing.into_leaves,
    writes.backward,
    writes.forward,
    layouts.gradients,
    kept.tensors,
    kept.functions,
    hoards.hoarded,
    saved.requires_grad,
    saved.twice,
    saved.not_tensors,
    allocation.defaults,
    seeds.seeded,
    second_order.saved,
    second_order.opaque,
)
"""Every rule, in the order in which they run."""
