"""A little more work: where a grid, a block or a cache is just exceeded, a time may jump up, but hardly down."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from iossim.backends.simulator.kernel_model import KernelModel
from iossim.hardware.compute_capability import SINCE_AMPERE
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Issue, Libraries
from iossim.hardware.lowering.target import step_candidates
from iossim.measurements.operator_kinds import read_record

DEVICES = ("k80", "titan-x", "p100-sxm2", "p4", "v100-sxm2", "t4", "rtx-3090", "a100-sxm-40gb", "l4")

_SIZES = st.integers(1, 4096)
_ROWS = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["softmax", "layer_norm", "add"]),
        "rows": st.integers(1, 60_000),
        "cols": st.integers(2, 50_000),
    }
)
_IMAGES = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["global_average_pool", "max_pool", "average_pool"]),
        **{"batch": st.integers(1, 64), "channels": _SIZES, "in_size": st.sampled_from([7, 14, 28, 56])},
        **{"kernel": st.sampled_from([2, 3, 7]), "stride": st.integers(1, 3), "padding": st.just(1)},
    }
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(DEVICES), st.sampled_from(Libraries), st.one_of(_ROWS, _IMAGES), st.data())
def test_a_little_more_is_hardly_faster(
    name: str, libraries: Libraries, record: dict[str, Any], data: st.DataObject
) -> None:
    profile = device(name)
    if libraries is Libraries.CUDNN_7 and profile.architecture in SINCE_AMPERE:
        libraries = Libraries.CUDNN_8
    size = data.draw(st.sampled_from(sorted({"rows", "cols", "batch", "channels"} & set(record))))
    model = KernelModel(profile, Issue.STREAM, libraries)
    _check(model, record, size)


def _check(model: KernelModel, record: dict[str, Any], size: str) -> None:
    more = record | {size: record[size] + max(1, record[size] // 100)}
    times = []
    for one in (record, more):
        _, prices = model.fastest(step_candidates(read_record(one).step(), model.profile))
        times.append(sum(price.alone_us for price in prices))
    assert times[1] >= 0.9 * times[0], (model.profile.name, model.libraries, record, size, times)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DEVICES), st.integers(1025, 12_000), st.integers(10_000, 60_000))
@example("rtx-3090", 4096, 65_536)
@example("v100-sxm2", 1025, 52_015)
@example("v100-sxm2", 2048, 30_000)
def test_long_rows_take_time_by_their_length(name: str, cols: int, rows: int) -> None:
    """Whatever the block: its threads double at some lengths, and so do the rows in flight."""
    _check(
        KernelModel(device(name), Issue.STREAM, Libraries.CURRENT),
        {"op": "softmax", "rows": rows, "cols": cols},
        "cols",
    )


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(DEVICES), st.integers(1, 2048), st.sampled_from([14, 28, 56]))
@example("v100-sxm2", 512, 56)
def test_a_block_in_part_takes_the_time_of_a_block(name: str, channels: int, size: int) -> None:
    record = {"op": "global_average_pool", "batch": 1, "channels": channels, "in_size": size}
    _check(KernelModel(device(name), Issue.STREAM, Libraries.CUDNN_8), record, "channels")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DEVICES), st.sampled_from([(2, 2, 14), (3, 1, 35), (3, 2, 42), (7, 7, 7)]), st.integers(4, 250))
@example("t4", (7, 7, 7), 76)
@example("p4", (2, 2, 14), 30)
def test_averages_fall_off_no_cliff_where_they_leave_l2(name: str, window: tuple[int, int, int], batch: int) -> None:
    """A quarter more images take no four times as long: what waits for L2 waits but so much longer for DRAM."""
    kernel, stride, size = window
    record = {"op": "average_pool", "channels": 96, "kernel": kernel, "stride": stride, "padding": 0, "in_size": size}
    model = KernelModel(device(name), Issue.STREAM, Libraries.CUDNN_8)
    times = []
    for images in (batch, batch + max(1, batch // 4)):
        _, prices = model.fastest(step_candidates(read_record(record | {"batch": images}).step(), model.profile))
        times.append(sum(price.alone_us for price in prices))
    assert times[1] <= 4.0 * times[0], (name, record, batch, times)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(DEVICES),
    st.tuples(st.integers(1, 2048), st.integers(16, 1024), st.integers(16, 2048)),
    st.booleans(),
    st.sampled_from(Libraries),
)
@example("a100-sxm-40gb", (1536, 64, 512), False, Libraries.CURRENT)
@example("v100-sxm2", (1, 1024, 2048), True, Libraries.CURRENT)
def test_vectors_take_as_long_as_their_matrices_are_read(
    name: str, sizes: tuple[int, int, int], is_columns: bool, libraries: Libraries
) -> None:
    """A decode step's products read each matrix once, on every board, at half of its bandwidth or more."""
    batch, n, k = sizes
    record = {"op": "bmm", "batch": batch, "n": n, "m": k if is_columns else 1, "k": 1 if is_columns else k}
    profile = device(name)
    if libraries is Libraries.CUDNN_7 and profile.architecture in SINCE_AMPERE:
        libraries = Libraries.CUDNN_8
    model, operator = KernelModel(profile, Issue.STREAM, libraries), read_record(record)
    _, prices = model.fastest(step_candidates(operator.step(), profile))
    moved = sum(value.bytes for value in (*operator.inputs, *operator.outputs))
    assert sum(price.alone_us for price in prices) <= 2.0 * moved / profile.dram_bandwidth_gbps / 1e3 + 12.0
    _check(model, record, "batch")
