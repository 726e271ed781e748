"""The picture of kernels side by side: every kernel is drawn, with its wait, and what is in use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_coruns import fake_corun

from iossim.profiles.corun_report import corun_figure
from iossim.report.figures.pictures import picture_files, whole_specification

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


def test_kernels_waits_and_labels() -> None:
    figure = corun_figure(fake_corun(), "title")
    lanes, *strips = figure.panels
    drawn = figure.records_of(lanes, {})
    bars = [(one["kind"], one["stream"], one["end_ms"]) for one in drawn if one["what"] == "kernel"]
    assert bars == [("gemm", 7, 0.04), ("elementwise_kernel", 7, 0.043), ("copy", 9, 0.1)]
    assert [(one["start_ms"], one["end_ms"]) for one in drawn if one["what"] == "wait"] == [(0.0, 0.02)]
    assert [one["text"] for one in drawn if one["what"] == "label"] == ["0 gemm", "1", "2 copy"]
    assert len(strips) == 5  # SMs, and four resources
    assert {entry.label for entry in figure.legend} >= {"gemm", "waits", "busy SMs"}


def test_of_what_is_never_in_use_nothing_is_shown() -> None:
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
    figure = corun_figure(fake_corun(), "title")
    assert whole_specification(figure, {}) == whole_specification(corun_figure(fake_corun(), "title"), {})
    for name, write in picture_files([figure], "svg", titled=True).items():
        write(tmp_path / name)
    text = (tmp_path / "timeline.svg").read_text()
    assert "2 copy" in text
    assert "waits" in text
