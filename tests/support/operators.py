"""Operators and measurement sets for tests, made and random."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from iossim.ir.types import Precision
from iossim.measurements.measurement import Extent, Header, Measurement, MeasurementSet, Operator, StageMeasurement
from iossim.measurements.operator_kinds import KINDS, read_record, record_of

Record = dict[str, Any]
CONV = "conv batch=1 in_channels=64 out_channels=32 in_h=56 in_w=48 kernel_h=3 kernel_w=5 stride_h=1 stride_w=2 pad_h=1 pad_w=2"


def parse_description(text: str, precision: Precision = Precision.FP32) -> Operator:
    """The operator of ``conv batch=1 in_channels=3 ...``."""
    op, *sizes = text.split()
    return read_record({"op": op, **dict(size.split("=") for size in sizes)}, precision)


def describe(operator: Operator) -> str:
    """Inverse of :func:`parse_description`."""
    record = record_of(operator)
    return " ".join((str(record.pop("op")), *(f"{name}={value}" for name, value in record.items())))


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

    def drawn(kinds: str, finish: Callable[[Record], Record] = dict, **columns: Any) -> st.SearchStrategy[Operator]:
        records = st.fixed_dictionaries({"op": st.sampled_from(kinds.split())} | columns)
        return records.map(lambda record: read_record(finish(record), precision))

    planes = " ".join(name for name, kind in KINDS.items() if {each.name for each in kind.columns} == {"rows", "cols"})
    product, sides = dict.fromkeys("mnk", sizes), dict.fromkeys(("trans_a", "trans_b"), st.sampled_from("NT"))
    window = {
        "batch": st.just(2),
        "in_size": st.integers(5, 60),
        "kernel": st.integers(1, 5),
        "stride": st.integers(1, 3),
    }
    channels = {"in_channels": st.integers(1, 16).map(lambda count: 4 * count), "out_channels": st.just(8)}
    return st.one_of(
        convolutions(precision),
        drawn(
            "conv_transpose",
            lambda record: record | {"output_padding": min(record["output_padding"], record["stride"] - 1)},
            **window, **channels, padding=st.just(0), output_padding=st.integers(0, 2), groups=st.sampled_from([1, 2, 4]),
        ),
        drawn(planes, rows=sizes, cols=sizes),
        drawn("gemm", **product, **sides),
        drawn("linear", **product, batch=st.just(1)),
        drawn("bmm", **product, batch=st.integers(1, 64)),
        drawn(
            "max_pool average_pool global_average_pool",
            lambda record: record | {"padding": record["kernel"] // 2},
            **window, channels=st.integers(1, 512),
        ),
    )  # fmt: skip


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
