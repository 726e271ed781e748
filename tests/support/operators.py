"""Operators and measurement sets for tests, made and random."""

from __future__ import annotations

from hypothesis import strategies as st

from iossim.ir.types import Precision
from iossim.measurements.measurement import Extent, Header, Measurement, MeasurementSet, Operator, StageMeasurement
from iossim.measurements.operator_kinds import KINDS, parse_description, read_record

CONV = "conv batch=1 in_channels=64 out_channels=32 in_h=56 in_w=48 kernel_h=3 kernel_w=5 stride_h=1 stride_w=2 pad_h=1 pad_w=2"


def conv(text: str = CONV) -> Operator:
    return parse_description(text)


sizes = st.integers(1, 4000)
precisions = st.sampled_from([Precision.FP32, Precision.FP16])


@st.composite
def convolutions(draw: st.DrawFn, precision: Precision = Precision.FP32) -> Operator:
    groups = draw(st.integers(1, 4))
    record = {
        "op": "conv",
        "batch": draw(st.integers(1, 64)),
        "in_channels": groups * draw(st.integers(1, 64)),
        "out_channels": groups * draw(st.integers(1, 64)),
        "groups": groups,
    }
    for axis in "hw":
        kernel, dilation = draw(st.integers(1, 7)), draw(st.integers(1, 2))
        record |= {f"kernel_{axis}": kernel, f"dilation_{axis}": dilation, f"stride_{axis}": draw(st.integers(1, 3))}
        record |= {f"pad_{axis}": draw(st.integers(0, 3)), f"in_{axis}": draw(st.integers(2 * kernel, 60))}
    return read_record(record, precision)


def operators(precision: Precision = Precision.FP32) -> st.SearchStrategy[Operator]:
    """An operator of any kind."""
    plane = st.builds(
        lambda op, rows, cols: read_record({"op": op, "rows": rows, "cols": cols}, precision),
        st.sampled_from(
            [name for name, kind in KINDS.items() if {each.name for each in kind.columns} == {"rows", "cols"}]
        ),
        sizes,
        sizes,
    )
    gemm = st.builds(
        lambda m, n, k, a, b: read_record(
            {"op": "gemm", "m": m, "n": n, "k": k, "trans_a": a, "trans_b": b}, precision
        ),
        sizes,
        sizes,
        sizes,
        st.sampled_from("NT"),
        st.sampled_from("NT"),
    )
    linear = st.builds(
        lambda m, n, k: read_record({"op": "linear", "batch": 1, "m": m, "n": n, "k": k}, precision),
        sizes,
        sizes,
        sizes,
    )
    bmm = st.builds(
        lambda batch, m, n, k: read_record({"op": "bmm", "batch": batch, "m": m, "n": n, "k": k}, precision),
        st.integers(1, 64),
        sizes,
        sizes,
        sizes,
    )
    transposed = st.builds(
        lambda channels, groups, size, kernel, stride, extra: read_record(
            {"op": "conv_transpose", "batch": 2, "in_channels": 4 * channels, "out_channels": 8, "in_size": size}
            | {
                "kernel": kernel,
                "stride": stride,
                "padding": 0,
                "output_padding": min(extra, stride - 1),
                "groups": groups,
            },
            precision,
        ),
        st.integers(1, 16),
        st.sampled_from([1, 2, 4]),
        st.integers(5, 30),
        st.integers(1, 5),
        st.integers(1, 3),
        st.integers(0, 2),
    )
    pool = st.builds(
        lambda op, channels, size, kernel, stride: read_record(
            {"op": op, "batch": 2, "channels": channels, "in_size": size}
            | {"kernel": kernel, "stride": stride, "padding": kernel // 2},
            precision,
        ),
        st.sampled_from(["max_pool", "average_pool", "global_average_pool"]),
        st.integers(1, 512),
        st.integers(5, 60),
        st.integers(1, 5),
        st.integers(1, 3),
    )
    return st.one_of(convolutions(precision), transposed, plane, gemm, linear, bmm, pool)


times = st.floats(1e-3, 1e9)
optional_times = st.none() | st.floats(0, 1e6)
optional_counts = st.none() | st.integers(0, 10_000)
extents = st.none() | st.builds(Extent, *[st.integers(1, 65535)] * 3)
names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters=";"), min_size=1
)


def measurement_sets() -> st.SearchStrategy[MeasurementSet]:
    """Any set that a file can hold."""
    measurement = st.builds(
        Measurement,
        precisions.flatmap(operators),
        times,
        optional_counts,
        optional_times,
        optional_counts,
        st.sampled_from(["", "WINOGRAD", "a, b"]),
        st.lists(names, max_size=3).map(tuple),
        extents,
        extents,
        st.booleans(),
    )
    groups = precisions.flatmap(
        lambda precision: st.lists(
            st.lists(operators(precision), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3
        ).map(tuple)
    )
    stage = st.builds(StageMeasurement, groups, times, optional_counts, optional_times, optional_counts, optional_times)
    header = st.builds(
        Header,
        device=st.sampled_from(["t4", "my-gpu"]),
        data_set=st.sampled_from(["lab", "2", "a: b #c"]),
        libraries=st.dictionaries(st.sampled_from(["cudnn", "cuda"]), st.sampled_from(["8", "8.9"])),
        host=st.sampled_from(["", "dgx1", "12"]),
        precision=precisions,
        includes_host_overhead=st.booleans(),
        host_overhead_drifts=st.booleans(),
        includes_gaps=st.booleans(),
        resolution_us=st.sampled_from([0.0, 1.0, 0.001]),
        date=st.sampled_from(["", "2026-11-21"]),
        source=st.sampled_from(["", "true", "a program"]),
    )
    return st.builds(
        MeasurementSet, header, st.lists(measurement, max_size=4).map(tuple), st.lists(stage, max_size=2).map(tuple)
    )
