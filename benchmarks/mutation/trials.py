"""The trials by name: which ones every input gets, and which ones some."""

from __future__ import annotations

from benchmarks.mutation import transformed, trying
from benchmarks.mutation.trying import Trial

QUICK: dict[str, Trial] = {"first order": trying.first_order, "second order": trying.second_order}
"""What every input is tried with."""

THOROUGH: dict[str, Trial] = {
    "cotangents": trying.cotangent_layouts,
    "repeats": trying.repeats,
    "changed meanwhile": trying.changed_meanwhile,
    "freed": trying.freed,
    "forward mode": transformed.tangents,
    "vmap": transformed.batches,
    "batched cotangents": transformed.batched_cotangents,
    "surroundings": transformed.surroundings,
    "one tensor twice": trying.one_tensor_twice,
}
"""What some inputs are tried with besides."""

ONCE = frozenset({"freed", "surroundings", "changed meanwhile", "one tensor twice", "vmap", "forward mode"})
"""Those of them that only the first input of a sample is tried with."""
