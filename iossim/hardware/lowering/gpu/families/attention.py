"""Attention: one fused kernel where frameworks and compilers have it, else its ops one after the other."""

from __future__ import annotations

from dataclasses import replace

from iossim.hardware.compute_capability import Architecture
from iossim.hardware.lowering.attention import unfused
from iossim.hardware.lowering.gpu.attention import fused_attention
from iossim.hardware.lowering.gpu.families import FAMILIES
from iossim.hardware.lowering.kernel import OF_FRAMEWORKS, Candidate, Libraries
from iossim.hardware.lowering.step import Step

_OTHERS = frozenset(Libraries) - OF_FRAMEWORKS


def attention(step: Step) -> list[Candidate]:
    """Where there is a fused kernel, frameworks and compilers call no other."""
    found = list(fused_attention(step))
    having = frozenset[Architecture]().union(*(one.architectures or () for one in found))
    for one in unfused(step, FAMILIES):
        replaced = one.architectures is not None and one.architectures <= having
        found.append(replace(one, libraries=(one.libraries or _OTHERS) & _OTHERS) if replaced else one)
    return [one for one in found if one.libraries != frozenset()]
