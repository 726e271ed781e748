"""Inputs for a plan that is run without data: seeded, and the same for every backend."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import TensorType


def made_inputs(plan: Plan, network: Network, seed: int = 0) -> dict[str, Array]:
    """An array for each of the plan's inputs."""
    return made_arrays(plan.inputs, network.graph.types, seed)


def made_arrays(names: Iterable[str], types: Mapping[str, TensorType], seed: int = 0) -> dict[str, Array]:
    """Normal numbers, or small whole ones for integers, from ``seed`` and each name alone."""
    found: dict[str, Array] = {}
    for name in names:
        wanted = types[name]
        generator = np.random.default_rng(
            [seed, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")]
        )
        if wanted.dtype.is_floating:
            found[name] = generator.standard_normal(wanted.shape, dtype=np.float32).astype(wanted.dtype.numpy)
        else:
            found[name] = generator.integers(0, 2, wanted.shape).astype(wanted.dtype.numpy)
    return found
