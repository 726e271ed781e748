"""Concurrent kernels as text, CSV, trace and picture."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_timelines import fake_execution
from trace_format import check_trace, counters

from iossim.backends.simulator.raw_kernels import RawKernel
from iossim.base.tables import plain_text
from iossim.execution.execution import Span
from iossim.profiles.corun import Corun, CorunKernel, Slowed, Through
from iossim.profiles.corun_report import (
    corun_csv,
    corun_figure,
    corun_table,
    corun_trace,
    inferred_words,
    lanes,
    lost_words,
    makespan_words,
    short_name,
)
from iossim.report.figures.vega import picture_files, whole_specification

LONG_NAME = "void at::native::(anonymous namespace)::elementwise_kernel<4, at::AddFunctor<float> >(int, float*)"


def fake_corun() -> Corun:
    """Stream 7 runs two kernels; stream 9 one, which waits for slots and shares DRAM."""
    kernels = [RawKernel("gemm", 7, 80, 256), RawKernel(LONG_NAME, 7, 8, 64), RawKernel("copy", 9, 160, 1024)]
    rows = (
        CorunKernel(kernels[0], 0.0, 0.0, 40.0, 30.0, (Slowed(2, Through.DRAM, 10.0),), ()),
        CorunKernel(kernels[1], 41.0, 41.0, 43.0, 2.0, (), ("32 registers a thread",)),
        CorunKernel(
            kernels[2],
            0.0,
            20.0,
            100.0,
            50.0,
            (Slowed(0, Through.SLOTS, 20.0), Slowed(0, Through.DRAM, 29.5), Slowed(1, Through.L2, 0.5)),
            ("32 registers a thread", "no shared memory"),
        ),
    )
    spans = [
        Span(row.kernel.name, str(number), 0, row.kernel.stream, row.start_us, row.end_us)
        for number, row in enumerate(rows)
    ]
    return Corun(100.0, 50.0, 82.0, rows, fake_execution(spans), "v100-sxm2")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("gemm", "gemm"),
        ("copy a (4 MiB)", "copy a (4 MiB)"),
        ("conv a: winograd_fused_1x4x8", "conv a: winograd_fused_1x4x8"),
        (LONG_NAME, "elementwise_kernel"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("void cutlass::Kernel<cutlass_80_tensorop>(Params)", "cutlass_80_tensorop"),
        ("void", "void"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


def test_lanes() -> None:
    assert lanes(fake_corun()).splitlines() == [
        "stream 7 [ 0 gemm ================] |",
        "stream 9 .............[ 2 copy ===========================================]",
        "         0" + " " * 57 + "100.0 us",
    ]


def test_the_table_says_who_slowed_whom() -> None:
    lines = plain_text(corun_table(fake_corun())).splitlines()
    assert [" ".join(line.split()) for line in lines[3:]][-4:] == [
        "0 7 gemm 0.0 40.0 30.0 1.33 2: DRAM 10.0",
        "1 7 elementwise_kernel 41.0 43.0 2.0 1.00",
        "2 9 copy 20.0 100.0 50.0 2.00 0: DRAM 29.5, slots 20.0",
        "1: L2 0.5",
    ]


def test_of_many_rows_those_that_lost_most_are_shown() -> None:
    table = corun_table(fake_corun(), most=1)
    assert table.row_count == 1
    assert "copy" in plain_text(table)


def test_sentences() -> None:
    run = fake_corun()
    assert makespan_words(run) == (
        "Concurrent: 100.0 us; 2.00x the 50.0 us for the longest stream alone, 1.22x the 82.0 us for the streams one after "
        "another"
    )
    assert lost_words(run) == "Time lost to contention, summed over kernels: DRAM 39.5 us, slots 20.0 us, L2 0.5 us"
    assert inferred_words(run) == ["32 registers a thread (rows 1-2)", "no shared memory (row 2)"]


def test_what_differs_in_numbers_alone_is_said_once() -> None:
    run = fake_corun()
    pipe = "fp32 pipe assumed"
    said = ("touches 5 bytes", "touches 1.5e+09 bytes", pipe, "touches 7 bytes", pipe, pipe)
    rows = tuple(replace(row, inferred=(phrase,)) for row, phrase in zip(run.kernels * 2, said, strict=True))
    told = inferred_words(replace(run, kernels=rows))
    assert told == ["touches ... bytes (rows 0-1, 3)", f"{pipe} (rows 2, 4-5)"]


def test_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(corun_csv(fake_corun()))))
    assert [row["name"] for row in rows] == ["gemm", LONG_NAME, "copy"]
    assert rows[2]["slowed_by"] == "0 slots 20;0 DRAM 29.5;1 L2 0.5"
    assert float(rows[2]["times_alone"]) == 2.0
    assert float(rows[2]["ready_us"]) == 0.0


def test_the_trace_has_a_track_a_stream_and_counters() -> None:
    text = corun_trace(fake_corun(), "title")
    tracks = check_trace(text)
    assert list(tracks) == ["stream 7", "stream 9"]
    assert [(event["name"], event["ts"], event["dur"]) for event in tracks["stream 7"]] == [
        ("gemm", 0, 40),
        (LONG_NAME, 41, 2),
    ]
    (event,) = tracks["stream 9"]
    assert event["args"]["waited_us"] == 20
    assert event["args"]["slowed_by"][0] == {"kernel": "gemm", "row": 0, "through": "slots", "us": 20}
    assert counters(text)["active warps"]


def test_kernels_waits_and_labels_are_drawn() -> None:
    figure = corun_figure(fake_corun(), "title")
    lanes, *strips = figure.panels
    drawn = figure.records_of(lanes, {})
    bars = [(one["kind"], one["stream"], one["end_ms"]) for one in drawn if one["what"] == "kernel"]
    assert bars == [("gemm", 7, 0.04), ("elementwise_kernel", 7, 0.043), ("copy", 9, 0.1)]
    assert [(one["start_ms"], one["end_ms"]) for one in drawn if one["what"] == "wait"] == [(0.0, 0.02)]
    assert [one["text"] for one in drawn if one["what"] == "label"] == ["0 gemm", "1", "2 copy"]
    assert len(strips) == 5  # SMs, and four resources
    assert {entry.label for entry in figure.legend} >= {"gemm", "waits", "busy SMs"}


def test_unused_resources_are_not_shown() -> None:
    run = fake_corun()
    idle = replace(run.execution, power=np.zeros(3), l2=np.zeros(3))
    assert len(corun_figure(replace(run, execution=idle), "title").panels) == 4


def test_many_names_share_a_colour() -> None:
    run = fake_corun()
    copy = run.kernels[2]
    rows = tuple(
        replace(copy, kernel=replace(copy.kernel, name=f"kernel {number}", stream=number)) for number in range(10)
    )
    figure = corun_figure(replace(run, kernels=rows), "title")
    assert [entry.label for entry in figure.legend][6:8] == ["kernel 6", "3 others"]


def test_it_is_drawn_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    figure = corun_figure(fake_corun(), "title")
    assert whole_specification(figure, {}) == whole_specification(corun_figure(fake_corun(), "title"), {})
    for name, write in picture_files([figure], "svg", titled=True).items():
        write(tmp_path / name)
    text = (tmp_path / "timeline.svg").read_text()
    assert "2 copy" in text
    assert "waits" in text
