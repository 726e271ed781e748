"""Physical limits bind whatever the parameters say, and how near the calibrated profiles come to what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence.data.data_sets import read_measurement_sets, read_measurements
from evidence.quoted.blocks import read_results
from evidence.validation.networks import NetworkEvaluation, evaluate_networks
from evidence.validation.roofline import roofline_us
from iossim import api
from iossim.backends.simulator.device_rates import device_rates
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.kernel_rows import kernel_table
from iossim.backends.simulator.kernel_times import ALONE, time_kernels
from iossim.calibration.validation import OperatorEvaluation, evaluate_operators
from iossim.hardware.compute_capability import WARP_THREADS
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Issue, Libraries
from iossim.hardware.lowering.step import Step
from iossim.hardware.lowering.target import step_candidates, target_of
from iossim.hardware.names import own_names, shipped_names
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.pool import AveragePool, MaxPool
from iossim.ir.types import Precision
from iossim.measurements.measurement import Operator
from iossim.measurements.operator_kinds import read_record
from iossim.models.load import load

DEVICES = ("k80", "titan-x", "p100-pcie-16gb", "p4", "v100-sxm2", "t4", "a100-sxm-40gb", "rtx-a6000", "l4", "h100-sxm")

#: Sides of planes; those of images, with their channels. The last is large work: 10^11 to 10^12 bytes.
_PLANES = ((1, 1), (1, 1000), (1000, 1), (512, 512), (4096, 4096), (65_536, 16_384), (2**22, 2**15))
_IMAGES = ((2, 2), (2, 7), (64, 56), (512, 14), (2048, 64), (256, 2048), (8192, 4096))


def _on_planes(kind: str) -> list[dict[str, Any]]:
    return [{"op": kind, "rows": rows, "cols": cols} for rows, cols in _PLANES]


def _on_images(kind: str, **sizes: int) -> list[dict[str, Any]]:
    images = [{"op": kind, "batch": 1, "channels": channels, "in_size": size, **sizes} for channels, size in _IMAGES]
    if "conv" not in kind:
        return images
    groups = "channels" if kind == "conv" else "batch"
    return [
        one
        | {
            "in_channels": one["channels"],
            "out_channels": one["channels"] if kind == "conv" else 64,
            "groups": one[groups],
        }
        for one in images
    ]


_WINDOW = {"kernel": 3, "stride": 1, "padding": 1}
#: Instructions of a tap, at the least: its address, whether it is inside, the load, the sum.
_OF_A_TAP = 6
#: Operators of growing size, and how far over the roofline the largest may be. Streams reach a half of the datasheet's
#: bandwidth at least, rows are read twice, by halves a load at a time, and long ones wait for exponentials. Windows spend most of their instructions on finding
#: themselves, and cuDNN 7 computes 32 filters a group where there is one.
KINDS: dict[str, tuple[list[dict[str, Any]], float]] = {
    "add": (_on_planes("add"), 2.0),
    "mul": (_on_planes("mul"), 2.0),
    "relu": (_on_planes("relu"), 2.0),
    "gelu": (_on_planes("gelu"), 2.0),
    "concat": (_on_planes("concat"), 2.0),
    "softmax": (_on_planes("softmax"), 8.0),
    "layer_norm": (_on_planes("layer_norm"), 5.0),
    "max_pool": (_on_images("max_pool", **_WINDOW), 20.0),
    "average_pool": (_on_images("average_pool", **_WINDOW), 35.0),
    "strided max_pool": (_on_images("max_pool", kernel=2, stride=2, padding=0), 12.0),
    "global_average_pool": (_on_images("global_average_pool"), 5.0),
    "depthwise": (_on_images("conv", **_WINDOW), 60.0),
    "transposed": (_on_images("conv_transpose", kernel=2, stride=2, padding=0), 6.0),
}


def _operators(name: str, precision: Precision) -> list[Operator]:
    return [read_record(record, precision) for record in KINDS[name][0]]


def _price_us(operator: Operator, model: KernelModel) -> float:
    """Without the gaps between kernels."""
    _, prices = model.fastest(step_candidates(operator.step(), model.profile))
    return sum(price.alone_us - model.rates.gap_us for price in prices)


def _roofline_us(operator: Operator, profile: DeviceProfile) -> float:
    """The arithmetic at the datasheet's peak, or what must pass DRAM as it fits no L2, whichever is longer."""
    l2 = profile.datasheet.l2_bytes.value
    inputs = [value.bytes for index, value in enumerate(operator.inputs) if index not in operator.weights]
    outputs = sum(value.bytes for value in operator.outputs)
    moved = max(0, sum(inputs) - l2) + max(0, outputs - l2)
    tflops = max(profile.fp32_tflops, profile.reduced_precision_tflops(operator.precision) or 0.0)
    issued = profile.sm_count * profile.limits.warp_schedulers * WARP_THREADS * profile.boost_clock_ghz * 1e3
    instructions = operator.outputs[0].elements * _taps(operator) * _OF_A_TAP
    return max(operator.flops / tflops / 1e6, moved / profile.dram_bandwidth_gbps / 1e3, instructions / issued)


def _taps(operator: Operator) -> int:
    """Of a window that a thread goes through; 0 of all others."""
    if isinstance(operator.op, MaxPool | AveragePool):
        return math.prod(operator.op.kernel)
    return math.prod(operator.inputs[1].shape[2:]) if isinstance(operator.op, Conv) else 0


@pytest.mark.parametrize("libraries", Libraries)
@pytest.mark.parametrize("name", DEVICES)
def test_no_price_is_under_the_roofline_nor_far_over_it(name: str, libraries: Libraries) -> None:
    profile = device(name)
    model = KernelModel(profile, libraries=libraries)
    for kind, (_, most_over) in KINDS.items():
        for precision in (Precision.FP32, Precision.FP16):
            operators = _operators(kind, precision)
            prices = [_price_us(operator, model) for operator in operators]
            roofs = [_roofline_us(operator, profile) for operator in operators]
            for operator, price, roof in zip(operators, prices, roofs, strict=True):
                assert price >= 0.999 * roof, (kind, precision, operator.key, price / roof)
            assert prices[-1] <= most_over * roofs[-1], (kind, precision, prices[-1] / roofs[-1])
            # A few elements take what a kernel and its transforms take to fill and drain.
            assert prices[0] <= 20.0, (kind, precision, prices[0])


def _products(precision: Precision) -> list[Operator]:
    shapes = [(m, n, k) for m in (1, 64, 4096) for n in (512, 8192) for k in (512, 16_384)]
    layers = [{"op": "linear", "batch": 1, "m": m, "n": n, "k": k} for m, n, k in shapes]
    heads = [{"op": "bmm", "batch": 64, "m": m, "n": n, "k": 128} for m, n, _ in shapes[::2]]
    sizes = ((1, 3, 64, 7, 224), (8, 256, 64, 1, 56), (1, 2048, 512, 1, 7), (32, 256, 256, 3, 14))
    names = ("batch", "in_channels", "out_channels", "kernel", "in_size")
    convolutions = [{"op": "conv", "stride": 1, "padding": 1} | dict(zip(names, one, strict=True)) for one in sizes]
    return [read_record(record, precision) for record in (*layers, *heads, *convolutions)]


@pytest.mark.parametrize(("precision", "issue"), [(Precision.FP32, Issue.CALLS), (Precision.FP16, Issue.GRAPH)])
def test_no_kernel_moves_more_than_memory_delivers(precision: Precision, issue: Issue) -> None:
    # Lowered once, for all devices: those of other generations, too.
    operators = [*_products(precision), *(one for kind in KINDS for one in _operators(kind, precision))]
    lowered = [target_of(device("h100-sxm")).family(one.op)(one.step()) for one in operators]  # type: ignore[misc]
    kernels = [kernel for candidates in lowered for one in candidates for kernel in one.kernels]
    for profile in (device(name) for name in own_names() if name != "cpu"):
        if profile.kind != "gpu":
            continue
        rates, table = device_rates(profile, issue), kernel_table(profile.limits, kernels)
        alone_us = time_kernels(table, rates)[:, ALONE] - rates.gap_us
        operands = table["activation_bytes"] + table["weight_bytes"] + table["bytes_written"]
        beyond_l2 = np.maximum(table["weight_bytes"], operands - profile.datasheet.l2_bytes.value)
        assert (beyond_l2 <= alone_us * profile.dram_bandwidth_gbps * 1e3 * 1.001).all(), profile.name
        assert (operands <= alone_us * rates.l2_bytes_per_us * 1.001).all(), profile.name
        # An SM's port moves 64 bytes a clock.
        clocks = profile.boost_clock_ghz * 1e3 * profile.sm_count
        assert rates.l2_bytes_per_us <= 64.0 * clocks, profile.name


NETWORKS = ("ios_sample", "resnet18")
#: Ratio of two boards' times that only comes of parameters fitted apart, or borrowed from other sources.
NOISE = 1.03
#: Boards that recordings show slower than a lesser one, by how much at most: single convolutions in fp32 reach 0.94 of a
#: V100's peak and 0.70 of an A100's, whose SMs have as many fp32 lanes. cuDNN's in fp32 reach half of an H200's at most,
#: and in a network they wait for weights from DRAM; of today's library on the lesser boards neither is recorded.
RECORDED_SLOWER = {
    **{("v100-pcie-32gb", f"a100-{board}"): 1.25 for board in ("pcie-40gb", "pcie-80gb", "sxm-40gb", "sxm-80gb")},
    **{
        (name, board): 1.45
        for name in ("a10", "a40", "gtx-1080-ti", "rtx-3070", "rtx-3090", "rtx-a5000", "rtx-a6000")
        for board in ("h100-sxm", "h200-sxm", "b200")
    },
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
    return load(model, dtype=dtype)


@cache
def sequential_us(name: str, model: str, engine: str, dtype: str) -> float:
    return api.optimize(loaded(model, dtype), name, engine=engine, scheduler="sequential").latency_us


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["paper", "graph"])
@pytest.mark.parametrize(("name", "better"), sorted(better_pairs()))
def test_a_better_board_is_nowhere_slower(name: str, better: str, engine: str) -> None:
    for model in NETWORKS:
        own_us, their_us = (sequential_us(one, model, engine, "fp32") for one in (name, better))
        assert their_us <= RECORDED_SLOWER.get((name, better), NOISE) * own_us, (model, own_us, their_us)


#: Convolutions with bias and activation by batch, channels, filters, window, stride, size of the image, and groups.
_BIASED = [
    *(
        (batch, 3, filters, *window)
        for batch in (8, 256)
        for filters, *window in ((64, 7, 2, 224, 1), (32, 3, 2, 299, 1))
    ),
    *((batch, 375, 750, 3, 1, 15, 1) for batch in (1, 32)),
    *((batch, 100, 60, 1, 1, 56, 1) for batch in (1, 32)),
    *((batch, 256, 256, *window, 256) for batch in (1, 32) for window in ((5, 1, 28), (3, 1, 14), (3, 2, 56))),
]
_STARTING_US = 1.3  #: Difference between families of kernels in what they take to begin and end.


def _compiled_us(record: dict[str, Any], name: str, precision: Precision) -> float:
    """Price by a compiler in a graph; a convolution has bias and activation."""
    model, step = _compiling(name), read_record(record, precision).step()
    if record["op"] == "conv":
        step = replace(step, flops=step.flops + 2 * step.outputs[0].elements)
    return _us(step, model)


def _us(step: Step, model: KernelModel) -> float:
    _, prices = model.fastest(step_candidates(step, model.profile))
    return math.fsum(price.alone_us for price in prices)


@cache
def _compiling(name: str) -> KernelModel:
    return KernelModel(device(name), Issue.GRAPH, Libraries.COMPILED)


def _biased(*sizes: int) -> dict[str, Any]:
    names = ("batch", "in_channels", "out_channels", "kernel", "stride", "in_size", "groups")
    return {"op": "conv", "padding": sizes[3] // 2} | dict(zip(names, sizes, strict=True))


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "l4", "rtx-4090", "h100-sxm", "h200-sxm", "b200"])
@pytest.mark.parametrize("sizes", _BIASED)
def test_convolutions_of_fewer_bits_take_no_longer_by_a_compiler(name: str, sizes: tuple[int, ...]) -> None:
    # Recorded: cuDNN's depthwise kernels for halves in NHWC take longer than PyTorch's in NCHW.
    types = [Precision.TF32, Precision.BF16, Precision.INT8][sizes[-1] > 1 :]
    times = [_compiled_us(_biased(*sizes), name, precision) for precision in types]
    assert all(fewer <= 1.15 * more + _STARTING_US for more, fewer in pairwise(times)), times


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.INT8])
@pytest.mark.parametrize("sizes", [sizes for sizes in _BIASED if sizes[-1] == 1])
def test_convolutions_on_hopper_take_no_longer_than_on_ampere(sizes: tuple[int, ...], precision: Precision) -> None:
    boards = ("a100-sxm-80gb", "h100-sxm", "h200-sxm")
    ampere, *others = (_compiled_us(_biased(*sizes), name, precision) for name in boards)
    assert all(one <= 1.05 * ampere + _STARTING_US for one in others), (ampere, others)


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "l4", "h100-sxm", "b200"])
@pytest.mark.parametrize("kind", ["softmax", "layer_norm"])
def test_rows_of_16_bits_by_a_compiler(name: str, kind: str) -> None:
    """No slower than in fp32, near their traffic if they are many, and without a cliff between lengths."""
    for rows in (1, 128, 4096, 65_536):
        for columns in (512, 1024, 4096, 8192):
            record = {"op": kind, "rows": rows, "cols": columns}
            wide, narrow = (_compiled_us(record, name, one) for one in (Precision.FP32, Precision.BF16))
            assert narrow <= wide + _STARTING_US, (record, wide, narrow)
            longer = _compiled_us(record | {"cols": columns + 1}, name, Precision.BF16)
            assert longer <= 1.5 * narrow + 3.2, (record, narrow, longer)
            if rows > 4096:
                assert narrow <= 2.0 * rows * columns * 4 / device(name).dram_bandwidth_gbps / 1e3, (record, narrow)


_COUNTS, _SIZES, _SIDES = map(st.sampled_from, ((2, 3, 8, 21, 96), (24, 64, 200, 768, 2048), (7, 28, 112)))
_IMAGES_OF = {"batch": _COUNTS, "in_size": _SIDES, "stride": st.sampled_from((1, 2)), "padding": st.just(0)}
_CONVOLVED = _IMAGES_OF | {"in_channels": _SIZES, "out_channels": _SIZES, "kernel": st.sampled_from((1, 3))}
_PLANES_OF, _PRODUCT = {"rows": _SIZES, "cols": _SIZES}, {"batch": _COUNTS, "m": _SIZES, "n": _SIZES, "k": _SIZES}
_COLUMNS_OF = {
    **{"conv": _CONVOLVED, "conv_transpose": _CONVOLVED | {"kernel": st.just(3)}, "linear": _PRODUCT, "bmm": _PRODUCT},
    **dict.fromkeys(("max_pool", "average_pool"), _IMAGES_OF | {"channels": _SIZES, "kernel": st.sampled_from((2, 3))}),
    **dict.fromkeys(("softmax", "layer_norm", "add", "gelu"), _PLANES_OF),
}
_OPERATORS = [st.fixed_dictionaries({"op": st.just(kind), **columns}) for kind, columns in _COLUMNS_OF.items()]
_BETTER = {"a10": "a40", "l4": "l40s", "h100-sxm": "h200-sxm"}


@given(st.one_of(_OPERATORS), st.sampled_from(sorted(_BETTER)), st.sampled_from(("fp32", "tf32", "fp16", "bf16")))
def test_twice_the_work_takes_longer_but_no_more_than_twice(record: dict[str, Any], name: str, dtype: str) -> None:
    """Save for what L2 no longer keeps; a better board takes no longer, and halves no longer than fp32."""
    doubled = record | {column: 2 * record[column] for column in ("batch", "rows") if column in record}
    once, twice = (_compiled_us(each, name, Precision(dtype)) for each in (record, doubled))
    operator = read_record(doubled, Precision(dtype))
    lost_us = 2e-3 * sum(one.bytes for one in (*operator.inputs, *operator.outputs)) / device(name).dram_bandwidth_gbps
    assert 0.93 * once - _STARTING_US <= twice <= 1.2 * (2.0 * once + lost_us)
    assert _compiled_us(record, _BETTER[name], Precision(dtype)) <= NOISE * once
    wide, narrow = (_compiled_us(record, name, one) for one in (Precision.FP32, Precision.BF16))
    assert narrow <= 1.25 * wide + 2.0 * _STARTING_US


DEVICE = "v100-sxm2"


def held_out(shared: Path, table: str, name: str) -> OperatorEvaluation:
    return evaluate_operators(read_measurements(shared / "data" / table), device(name), roofline_us).unseen


@pytest.mark.parametrize(
    ("table", "name", "kind", "error"),
    [
        ("tensor_core_products", "v100-sxm2", "gemm", 0.13),
        ("tensor_core_products", "t4", "gemm", 0.13),
        ("tensor_core_convolutions", "v100-sxm2", "conv", 0.20),
        ("tensor_core_convolutions", "t4", "conv", 0.13),
        ("ios_engine_ops", "a100-sxm-40gb", "conv", 0.125),
        ("ios_engine_ops", "rtx-3070", "conv", 0.17),
        pytest.param("fp16_products", "a100-pcie-80gb", "linear", 0.075, marks=pytest.mark.slow),
        pytest.param("fp16_products", "a40", "linear", 0.07, marks=pytest.mark.slow),
    ],
)
def test_tensor_cores(shared: Path, table: str, name: str, kind: str, error: float) -> None:
    """One set of parameters for all generations; the shapes held out took no part in it."""
    sets = read_measurement_sets(shared / "data" / "operators" / f"{table}.csv")
    (measured,) = (one for one in sets if one.device == name)
    found = evaluate_operators(measured, device(name)).unseen.of_kind(kind)
    assert {precision for _, precision in found.kinds} <= {Precision.FP16, Precision.TF32}
    assert found.gpu_time().mean_error < error


#: Operators of a framework: by chip the errors of convolutions, of the shortest of them, and of linear layers, in %.
#: Beside a host's overhead nothing tells what a call costs: small convolutions of a P100 are the worse for not fitting it.
BARS = {"V100": (8, 13.5, 10), "T4": (8.5, 20, 16), "P100": (8.5, 22, 13), "P4": (12, 21, 26)}


@pytest.mark.parametrize("chip", BARS)
def test_operators_of_a_framework(chip: str) -> None:
    """GPU time beside a host overhead that drifts with the row: the figures that are kept.

    That they are what is found, of all rows held out, is what ``tests/evidence/test_quoted_figures.py`` shows.
    """
    kept = read_results()["operators"]
    convolutions, short, linear = BARS[chip]
    assert kept["errors"][chip]["conv"] < min(convolutions, kept["roofline"][chip])
    assert kept["short_convolutions"][chip] < short
    assert kept["errors"][chip]["linear"] < linear
    assert min(kept["rank_correlation"]) > 0.89


@pytest.mark.parametrize(
    ("table", "name", "error"),
    [
        ("kernels/relu.p100-pcie-16gb.csv", "p100-pcie-16gb", 0.12),
        ("kernels/add.t4.csv", "t4", 0.12),
        ("kernels_direct/conv2d.v100-dgx1.csv", "v100-sxm2", 0.17),
        ("kernels_direct/gemm.v100-dgx1.csv", "v100-sxm2", 0.13),
        ("kernels_direct/conv2d.t4.csv", "t4", 0.22),
        ("kernels_direct/gemm.t4.csv", "t4", 0.17),
    ],
)
def test_other_operators(shared: Path, table: str, name: str, error: float) -> None:
    accuracy = held_out(shared, table, name).gpu_time()
    assert accuracy.mean_error is not None
    assert accuracy.mean_error < error


@pytest.fixture(scope="module")
def networks() -> NetworkEvaluation:
    return evaluate_networks(device(DEVICE))


@pytest.mark.slow
def test_published_networks_in_sample(networks: NetworkEvaluation) -> None:
    """Kernels and launches were fitted to these very figures, which are of sequential schedules."""
    fitted = {(model, "sequential") for model in ("inception_v3", "squeezenet", "ios_sample")}
    pinned = {("nasnet_a", "sequential"), ("nasnet_a", "ios-merge")}
    assert {(each.model, each.scheduler) for each in networks.in_sample} == fitted | pinned
    assert max(map(abs, networks.errors)) < 0.045


def test_concurrent_schedules_are_foretold(networks: NetworkEvaluation) -> None:
    """No fit saw any figure of them: neither of these networks nor of others."""
    unseen = networks.unseen_errors
    assert len(unseen) >= 14
    assert np.mean(np.abs(unseen)) < 0.03
    assert max(map(abs, unseen)) < 0.075
    assert np.mean([order.is_right for order in networks.orders]) >= 0.95


def test_published_networks_left_out(networks: NetworkEvaluation) -> None:
    """Each by a fit that saw no figure of it; one number of grouped convolution is pinned on NasNet-A's sequential figure."""
    errors: dict[str, list[float]] = {}
    for each in networks.latencies:
        errors.setdefault(each.model, []).append(abs(each.foretold_error))
    bars = {"inception_v3": 0.09, "squeezenet": 0.12, "ios_sample": 0.05, "nasnet_a": 0.075}
    assert set(errors) == set(bars)
    for model, several in errors.items():
        assert max(several) < bars[model], model
    right = [order.is_foretold for order in networks.orders]
    assert np.mean(right) >= 0.95
    assert networks.coverage is not None
    assert networks.coverage >= 0.7


def test_stages_of_the_sample_network(networks: NetworkEvaluation) -> None:
    assert {stage.stage for stage in networks.stages} == {"a", "b", "c", "d", "concat", "a,b", "d,c"}
    for stage in networks.stages:
        assert abs(stage.error) < 0.09, stage.stage
        assert stage.left_out_error is not None
        # The concat by itself is what tells a launch: without it only the prior does, which is of other hosts.
        assert abs(stage.left_out_error) < (0.6 if stage.stage == "concat" else 0.105), stage.stage
    (warps,) = networks.active_warps
    assert 1.2 < warps.predicted < 1.75
