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

DEVICES = st.sampled_from(["k80", "titan-x", "p100-sxm2", "p4", "v100-sxm2", "t4", "rtx-3090", "a100-sxm-40gb", "l4"])
LIBRARIES = st.sampled_from(Libraries)

_PLANES = {"rows": st.integers(1, 60_000), "cols": st.integers(2, 50_000)}
_IMAGES = {"batch": st.integers(1, 64), "channels": st.integers(1, 4096), "in_size": st.sampled_from([7, 14, 28, 56])}
_WINDOWS = {"kernel": st.sampled_from([2, 3, 7]), "stride": st.integers(1, 3), "padding": st.just(1)}
_RECORDS = st.one_of(
    st.fixed_dictionaries({"op": st.sampled_from(["softmax", "layer_norm", "add"])} | _PLANES),
    st.fixed_dictionaries({"op": st.sampled_from(["global_average_pool", "max_pool"])} | _IMAGES | _WINDOWS),
)


def _price_us(name: str, libraries: Libraries, record: dict[str, Any]) -> float:
    profile = device(name)
    if libraries is Libraries.CUDNN_7 and profile.architecture in SINCE_AMPERE:
        libraries = Libraries.CUDNN_8
    model = KernelModel(profile, Issue.STREAM, libraries)
    _, prices = model.fastest(step_candidates(read_record(record).step(), profile))
    return sum(price.alone_us for price in prices)


@settings(max_examples=200, deadline=None)
@given(DEVICES, LIBRARIES, _RECORDS, st.booleans())
@example("rtx-3090", Libraries.CURRENT, {"op": "softmax", "rows": 65_536, "cols": 4096}, True)
@example("v100-sxm2", Libraries.CURRENT, {"op": "softmax", "rows": 52_015, "cols": 1025}, True)
@example(
    "v100-sxm2", Libraries.CUDNN_8, {"op": "global_average_pool", "batch": 1, "channels": 512, "in_size": 56}, True
)
def test_a_little_more_is_hardly_faster(name: str, libraries: Libraries, record: dict[str, Any], inner: bool) -> None:
    sizes = ("rows", "cols") if "rows" in record else ("batch", "channels")
    more = {sizes[inner]: record[sizes[inner]] + max(1, record[sizes[inner]] // 100)}
    assert _price_us(name, libraries, record | more) >= 0.9 * _price_us(name, libraries, record)


@settings(max_examples=60, deadline=None)
@given(DEVICES, st.sampled_from([(2, 2, 14), (3, 1, 35), (3, 2, 42), (7, 7, 7)]), st.integers(4, 250))
@example("t4", (7, 7, 7), 76)
@example("p4", (2, 2, 14), 30)
def test_averages_fall_off_no_cliff_where_they_leave_l2(name: str, window: tuple[int, int, int], batch: int) -> None:
    """A quarter more images take no five times as long: DRAM is as much slower for copies, too."""
    record = {"op": "average_pool", "channels": 96, "padding": 0}
    record |= dict(zip(("kernel", "stride", "in_size"), window, strict=True))
    less, more = (record | {"batch": images} for images in (batch, batch + max(1, batch // 4)))
    assert _price_us(name, Libraries.CUDNN_8, more) <= 5.0 * _price_us(name, Libraries.CUDNN_8, less)


@settings(max_examples=80, deadline=None)
@given(DEVICES, LIBRARIES, st.tuples(*(st.integers(least, 2048) for least in (1, 16, 16))), st.booleans())
@example("a100-sxm-40gb", Libraries.CURRENT, (1536, 64, 512), False)
@example("v100-sxm2", Libraries.CURRENT, (1, 1024, 2048), True)
def test_a_vector_takes_as_long_as_its_matrix_is_read(
    name: str, libraries: Libraries, sizes: tuple[int, int, int], is_column: bool
) -> None:
    """A decode step's products read each matrix once, on every board, at half of its bandwidth or more."""
    batch, n, size = sizes
    m, k = (size, 1) if is_column else (1, size)
    moved = 4 * batch * (m * n + n * k + m * k)
    least_us = moved / device(name).dram_bandwidth_gbps / 1e3
    assert _price_us(name, libraries, {"op": "bmm", "batch": batch, "m": m, "n": n, "k": k}) <= 2.0 * least_us + 12.0
