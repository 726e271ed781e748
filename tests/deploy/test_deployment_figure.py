"""The picture of deployed streams: every kernel and node in its lane, and when several streams are at work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.deploy.deployment_report import deployment_figure, overlapping
from iossim.execution.execution import Span
from iossim.report.figures.pictures import svg_picture

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=8))
def test_when_several_spans_run(extents: list[tuple[int, int]]) -> None:
    found = overlapping([Span("n", "n", 0, 0, begin, begin + took) for begin, took in extents])
    several = {at for at in range(30) if sum(begin <= at < begin + took for begin, took in extents) > 1}
    assert {at for begin, end in found for at in range(int(begin), int(end))} == several
    assert all(begin < end for begin, end in found)
    assert found == sorted(found)


def test_two_streams_beside_what_was_predicted() -> None:
    """Of 400 us that are drawn two nodes share 50, from 100 on; none of the kernels was predicted to."""
    expected = [Span("a.b.conv", "a.b.conv", 0, 0, 0.0, 100.0), Span("c", "c", 0, 1, 100.0, 200.0)]
    ran = [Span("a.b.conv_nchwc", "a.b.conv_nchwc", 0, 0, 0.0, 150.0), Span("c", "c", 0, 1, 100.0, 400.0)]
    figure = deployment_figure("title", "what is seen", expected, ran)
    above, below = figure.panels
    assert above.title == "predicted: 0.20 ms, 0.00 of them with several streams at work"
    assert below.title == "ONNX Runtime's own profile: 0.40 ms, 0.05 of them with several streams at work"
    drawn = figure.records_of(below, {})
    bars = [(one["name"], one["stream"], one["start_ms"], one["end_ms"]) for one in drawn if one["what"] == "bar"]
    assert bars == [("a.b.conv_nchwc", 0, 0.0, 0.15), ("c", 1, 0.1, 0.4)]
    assert [(one["start_ms"], one["end_ms"]) for one in drawn if one["what"] == "together"] == [(0.1, 0.15)]
    assert [one["text"] for one in drawn if one["what"] == "label"] == ["a.b.conv_nchwc", "c"]
    picture = svg_picture(figure, {}, titled=True)
    assert all(text in picture for text in ("what is seen", "a.b.conv_nchwc", "several streams at work"))


def test_names_are_shortened_to_where_they_stand() -> None:
    """There is room for ten letters."""
    narrow = [
        Span("expert3.outer.matmul/MatMulAddFusion", "expert3.outer.matmul/MatMulAddFusion", 0, 0, 0.0, 46.0),
        Span("rest", "rest", 0, 0, 46.0, 1100.0),
    ]
    figure = deployment_figure("title", "", narrow, narrow)
    texts = [record["text"] for record in figure.records if record["what"] == "label"]
    assert texts == ["expert3", "rest"] * 2
