"""The trials by name: which ones every input gets, and which ones some."""

from __future__ import annotations

from benchmarks.mutation import sequels, transformed, trying
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
    "one graph": sequels.one_graph,
    "three calls": sequels.three_calls,
    "graph of nothing": sequels.graph_of_nothing,
    "another thread": sequels.another_thread,
    "after half precision": sequels.after_half_precision,
    "parameters": sequels.parameters,
    "settings": sequels.settings,
}
"""What some inputs are tried with besides."""

ONCE = frozenset(
    {"freed", "surroundings", "changed meanwhile", "one tensor twice", "vmap", "forward mode", "another thread"}
    | {"after half precision", "parameters", "settings", "three calls", "graph of nothing"}
)
"""Those of them that only the first input of a sample is tried with."""
