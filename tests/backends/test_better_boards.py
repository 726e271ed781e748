"""A board that is at least as good in every fact of its datasheet is nowhere slower, and fewer bits are nowhere slower."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pytest

from iossim import api
from iossim.hardware.compute_capability import has_precision
from iossim.hardware.load import device, shipped_names
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import Precision

pytestmark = pytest.mark.slow

NETWORKS = ("ios_sample", "resnet18")
#: What parameters of two boards differ by that were fitted apart, or borrowed from other sources.
NOISE = 1.03
#: Boards that recordings show slower than a lesser one, by how much at most: single convolutions in fp32 reach 0.94 of a
#: V100's peak and 0.70 of an A100's, whose SMs have as many fp32 lanes. cuDNN's in fp32 reach half of an H200's at most;
#: what they reach of an RTX 3090's is not recorded but borrowed.
RECORDED_SLOWER = {
    **{("v100-pcie-32gb", f"a100-{board}"): 1.25 for board in ("pcie-40gb", "pcie-80gb", "sxm-40gb", "sxm-80gb")},
    **{("rtx-3090", board): 1.08 for board in ("h100-sxm", "h200-sxm")},
}
_REDUCED = (Precision.TF32, Precision.FP16, Precision.INT8)


def _facts(profile: DeviceProfile) -> tuple[float, ...]:
    sheet = profile.datasheet
    per_precision = (profile.reduced_precision_tflops(one) or 0.0 for one in _REDUCED)
    return (
        *(profile.sm_count, sheet.fp32_lanes_per_sm.value, profile.boost_clock_ghz, profile.dram_bandwidth_gbps),
        *(sheet.l2_bytes.value, profile.board_power_w, profile.limits.max_threads, profile.limits.shared_bytes),
        *per_precision,
    )


def better_pairs() -> Iterator[tuple[str, str]]:
    """``(board, better board)`` of one architecture or a later one."""
    facts = {name: _facts(device(name)) for name in shipped_names()}
    for name, own in facts.items():
        for other, theirs in facts.items():
            if name != other and own != theirs and all(a <= b for a, b in zip(own, theirs, strict=True)):
                yield name, other


@cache
def loaded(model: str, dtype: str) -> Network:
    return api.load(model, dtype=dtype)


@cache
def sequential_us(name: str, model: str, engine: str, dtype: str) -> float:
    return api.optimize(loaded(model, dtype), name, engine=engine, scheduler="sequential").latency_us


@pytest.mark.parametrize("engine", ["paper", "graph"])
@pytest.mark.parametrize(("name", "better"), sorted(better_pairs()))
def test_a_better_board_is_nowhere_slower(name: str, better: str, engine: str) -> None:
    for model in NETWORKS:
        own_us, their_us = (sequential_us(one, model, engine, "fp32") for one in (name, better))
        assert their_us <= RECORDED_SLOWER.get((name, better), NOISE) * own_us, (model, own_us, their_us)


@pytest.mark.parametrize(
    "name", [name for name in shipped_names() if has_precision(device(name).compute_capability, Precision.TF32)]
)
def test_fewer_bits_are_nowhere_slower_in_a_graph(name: str) -> None:
    for model in NETWORKS:
        times = [sequential_us(name, model, "graph", dtype) for dtype in ("fp32", "tf32", "fp16", "int8")]
        assert all(b <= NOISE * a for a, b in pairwise(times)), (model, times)
