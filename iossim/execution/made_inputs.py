"""Inputs for a plan that is run without data: seeded, and the same for every backend."""

from __future__ import annotations

import hashlib

import numpy as np

from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.ir.op import Array


def made_inputs(plan: Plan, network: Network, seed: int = 0) -> dict[str, Array]:
    """An array for each of the plan's inputs: normal numbers, or small whole ones for integers, from ``seed`` and the name."""
    found: dict[str, Array] = {}
    for name in plan.inputs:
        wanted = network.graph.types[name]
        generator = np.random.default_rng(
            [seed, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")]
        )
        if wanted.dtype.is_floating:
            found[name] = generator.standard_normal(wanted.shape, dtype=np.float32).astype(wanted.dtype.numpy)
        else:
            found[name] = generator.integers(0, 2, wanted.shape).astype(wanted.dtype.numpy)
    return found
