"""Attention is one kernel where libraries have it, and the kernels of its ops where they have not."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Candidate, Libraries, WorkClass, resident_blocks
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.lowering.unit import lower_unit
from iossim.ir.network import Network, Unit
from iossim.ir.types import Precision
from iossim.measurements.operator_kinds import parse_description
from iossim.models.load import load

H100, V100 = device("h100-sxm"), device("v100-sxm2")
TEXT = "attention batch=2 heads=12 queries=384 keys=384 features=64"


def candidates(text: str = TEXT, name: str = "h100-sxm", precision: Precision = Precision.BF16) -> list[Candidate]:
    found = step_candidates(parse_description(text, precision).step(), device(name))
    return [one for one in found if one.is_in(Libraries.COMPILED)]


@pytest.mark.parametrize(("name", "blocks"), [("h100-sxm", 2 * 12 * 2), ("a100-sxm-40gb", 2 * 12 * 3)])
def test_one_kernel_goes_over_all_keys(name: str, blocks: int) -> None:
    (found,) = candidates(name=name)
    (kernel,) = found.kernels
    assert (kernel.work_class, kernel.blocks) == (WorkClass.ATTENTION, blocks)
    pairs = 2 * 12 * 384 * 384
    assert (kernel.flops, kernel.exponentials) == (4 * 64 * pairs, pairs)
    tensor = 2 * 12 * 384 * 64 * 2
    assert (kernel.activation_bytes, kernel.bytes_written) == (3 * tensor, tensor)
    assert resident_blocks(device(name).limits, *kernel.block_needs) > 0


@pytest.mark.parametrize(
    ("text", "name", "precision"),
    [
        (TEXT, "v100-sxm2", Precision.FP16),
        (TEXT, "t4", Precision.FP16),
        (TEXT, "h100-sxm", Precision.FP32),
        (TEXT, "h100-sxm", Precision.TF32),
        (TEXT.replace("=64", "=512"), "h100-sxm", Precision.FP16),
    ],
)
def test_without_a_fused_kernel_it_is_three(text: str, name: str, precision: Precision) -> None:
    found = candidates(text, name, precision)
    assert found
    for one in found:
        first, *_, last = (kernel.work_class for kernel in one.kernels)
        assert len(one.kernels) == 3
        assert first is last or {first, last} <= {WorkClass.GEMM, WorkClass.TENSOR}


def test_the_published_engine_has_none() -> None:
    found = step_candidates(parse_description(TEXT, Precision.FP16).step(), H100)
    of_engine = [one for one in found if one.is_in(Libraries.CUDNN_8)]
    assert of_engine
    assert all(len(one.kernels) == 3 for one in of_engine)


@given(*[st.integers(1, 5000)] * 2, st.sampled_from([8, 64, 72, 128, 160, 256]), st.booleans())
def test_tiles_cover_every_pair_that_is_seen(queries: int, keys: int, features: int, causal: bool) -> None:
    text = f"attention batch=1 heads=2 queries={queries} keys={keys} features={features} causal={int(causal)}"
    operator = parse_description(text, Precision.FP16)
    seen = operator.op.multiply_adds(operator.inputs, ()) // (2 * features)
    for name in ("h100-sxm", "a100-sxm-40gb"):
        for one in candidates(text, name, Precision.FP16):
            kernel, *combine = one.kernels
            assert kernel.flops >= 4 * features * seen
            assert kernel.exponentials >= seen
            assert resident_blocks(device(name).limits, *kernel.block_needs) > 0
            assert bool(combine) == ("split" in one.algorithm) == (one.workspace_bytes > 0)
            assert not combine or queries <= 64


def test_a_causal_one_computes_about_half() -> None:
    text = TEXT.replace("384", "8192")
    (whole,), (half,) = candidates(text), candidates(text + " causal=1")
    assert 0.5 < half.kernels[0].flops / whole.kernels[0].flops < 0.52
    assert half.kernels[0].activation_bytes == whole.kernels[0].activation_bytes


def test_heads_that_share_keys_read_them_from_dram_once() -> None:
    (own,), (shared,) = candidates(), candidates(TEXT + " kv_heads=4")
    assert shared.kernels[0].flops == own.kernels[0].flops
    tensor = own.kernels[0].bytes_written
    assert shared.kernels[0].activation_bytes == tensor + 2 * tensor // 3


def attention_unit(dtype: str) -> tuple[Network, Unit]:
    network = load("bert_layer", dtype=dtype, units="fused")
    (unit,) = (unit for unit in network.units if unit.kind == "Attention")
    return network, unit


def test_a_unit_that_spells_it_out_is_that_kernel() -> None:
    network, unit = attention_unit("fp16")
    (found,) = lower_unit(network, unit, H100)
    (one,) = (one for one in found if one.is_in(Libraries.COMPILED))
    alone = candidates("attention batch=1 heads=12 queries=128 keys=128 features=64", precision=Precision.FP16)
    assert [one.kernels] == [each.kernels for each in alone]


@pytest.mark.parametrize("profile", [V100, device("p4")], ids=str)
def test_elsewhere_its_ops_are_the_kernels_that_they_are_as_units(profile) -> None:
    network, unit = attention_unit("fp32")
    (found,) = lower_unit(network, unit, profile)
    inside = {node.name for node in network.unit_nodes(unit)}
    own = load("bert_layer", dtype="fp32")
    steps = [
        candidates
        for each in own.units
        if {node.name for node in own.unit_nodes(each)} <= inside
        for candidates in lower_unit(own, each, profile)
    ]
    assert len(found) == math.prod(map(len, steps))
    expected = {frozenset(kernel.name for one in chosen for kernel in one.kernels) for chosen in product(*steps)}
    assert {frozenset(kernel.name for kernel in one.kernels) for one in found} == expected


def test_queries_that_are_few_divide_their_keys() -> None:
    found = candidates("attention batch=1 heads=8 queries=1 keys=4096 features=128 kv_heads=2")
    assert [one.kernels[0].blocks for one in found] == [8, 16, 32, 64, 128]
    assert all(one.kernels[1].bytes_written == 8 * 128 * 2 for one in found[1:])
