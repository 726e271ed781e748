"""The figures of a report as data: which there are, what they draw, that no row is lost, and that colours can be told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_studies import SCHEDULERS, made_run, made_scenario, searches

from iossim.base.errors import OptionError
from iossim.ir.types import Precision
from iossim.report.colours import scheduler_marks
from iossim.report.figures import vega
from iossim.report.figures.figure import Figure
from iossim.report.figures.vega import HALO, PALETTE, dark, light, log_ticks, paper
from iossim.study.axes import Device, Model, Rewrite
from iossim.study.question import Question
from iossim.study.report.layout import group_of, layout
from iossim.study.report.plots import figures, plots
from iossim.study.study_run import StudyRun

altair = pytest.importorskip("altair")

HERE = Path("run")


def devices(count: int) -> list[Device]:
    return [Device(device=f"gpu-{number}") for number in range(count)]


def alphas() -> list[Rewrite]:
    """The network as given, and rewritten at two values of alpha."""
    return [Rewrite(rules="none"), *(Rewrite(rules="default", alpha=at, label=f"alpha {at}") for at in (1.0, 1.1))]


def figure(run: StudyRun, name: str) -> Figure:
    return next(each for each in figures(run, [name]))


def encodings(spec: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Mark, channel and encoding of all layers."""
    for layer in spec["layer"]:
        mark = layer["mark"]["type"]
        for channel, encoding in layer.get("encoding", {}).items():
            if isinstance(encoding, dict):
                yield mark, channel, encoding


def fields(spec: Any) -> set[str]:
    return {encoding["field"] for _, _, encoding in encodings(spec) if "field" in encoding}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["speedup", "latency", "kinds"]),
        ({"batch_sizes": [1, 8, 32]}, ["speedup", "batch", "kinds"]),
        ({"batch_sizes": [1, 8, 32], "schedulers": ["ios-both"]}, ["batch", "kinds"]),
        ({"devices": devices(8)}, ["overview", "speedup", "latency", "kinds"]),
        ({"devices": devices(3), "batch_sizes": [1, 8]}, ["speedup", "latency", "kinds"]),
        ({"batch_sizes": [1, 16, 32], "crossed": ["batch"]}, ["speedup", "batch", "batch_specialisation", "kinds"]),
        ({"devices": devices(2), "crossed": ["device"]}, ["speedup", "latency", "device_specialisation", "kinds"]),
        ({"devices": devices(3), "questions": [Question(at_most=5)]}, ["devices", "speedup", "latency", "kinds"]),
        ({"searches": searches()}, ["speedup", "latency", "pruning", "kinds"]),
        ({"plots": ["kinds", "speedup"]}, ["kinds", "speedup"]),
    ],
)  # fmt: skip
def test_the_axes_choose_the_figures(changes: dict[str, Any], expected: list[str]) -> None:
    found = [figure.name for figure in figures(made_run(HERE, made_scenario(**changes)))]
    assert found == expected


def test_whiskers_of_a_throughput_are_those_of_its_latency_turned_over() -> None:
    drawn = figure(made_run(HERE, made_scenario(batch_sizes=[1, 8, 32])), "batch")
    for record in drawn.records:
        low, own, high = (float(str(record[f"{end}throughput"])) for end in ("low_", "", "high_"))
        assert low < own < high


def test_an_unknown_plot_is_told() -> None:
    with pytest.raises(OptionError, match=r"plot 'speedups' is not known; did you mean 'speedup'\?"):
        figures(made_run(HERE), ["speedups"])


@pytest.mark.parametrize("name", ["speedup", "latency", "batch", "kinds", "overview", "pruning"])
def test_no_row_is_lost(name: str) -> None:
    scenario = made_scenario(devices=devices(3), batch_sizes=[1, 8, 32], searches=searches())
    run = made_run(HERE, scenario)
    drawn = figure(run, name)
    rows = run.results.rows
    expected = {
        "kinds": 3 * len(rows),
        "overview": len({row.point for row in rows}),
        "pruning": sum(row.scheduler == "ios-both" for row in rows),
        "speedup": sum(row.scheduler != "sequential" for row in rows),  # its own would all be 1
    }
    assert len(drawn.records) == expected.get(name, len(rows))
    if name == "pruning":
        pruned = {(record["r"], record["s"]) for record in drawn.records}
        assert pruned == {("1", "3"), ("1", "8"), ("3", "3"), ("3", "8"), ("none", "none")}
    # Every record is in a panel of some slice: of one, except where panels draw different columns of the same.
    seen = sum(len(drawn.records_of(panel, chosen)) for chosen in drawn.slices() for panel in drawn.panels)
    pictures = {"batch": 2, "pruning": 3}.get(name, 1)
    assert seen == pictures * len(drawn.records)


#: What stands in the titles of axes of numbers: a unit, or why there is none.
UNITS = (
    "(ms)",
    "(×)",
    "(s)",
    "(samples/s)",
    "(MiB)",
    "(%)",
    "warps",
    "log scale",
    "batch size",
    "s: most",
    "times used",
)


@pytest.mark.parametrize("name", sorted(plots()))
def test_every_kind_of_figure_is_told_has_units_and_reads_what_its_records_have(name: str) -> None:
    scenario = made_scenario(
        models=[Model(model="squeezenet")], devices=devices(2), batch_sizes=[1, 8, 32], searches=searches(),
        crossed=["device", "batch"], rewrites=alphas(),
    )  # fmt: skip
    measured = {"active_warps": 900.0, "peak_memory_mib": 80.0, "micro_batch_gain": 1.5, "largest_gain": 2.0}
    drawn = figure(made_run(HERE, scenario, **measured, rules={"merge-convs": 3, "drop-relu": 1}), name)
    assert all((drawn.finding, drawn.caption, drawn.alt))
    assert f"--plot {name} --figures svg" in drawn.command
    first, known = drawn.records[0], {key for record in drawn.records for key in record}
    assert {choice.key for choice in drawn.choices} <= set(first)
    assert {column.key for column in drawn.columns} <= known | {"published_ms"}
    altair.LayerChart.from_dict(dict(drawn.panels[0].spec))
    for panel in drawn.panels:
        titles = {
            encoding["title"]
            for _, channel, encoding in encodings(panel.spec)
            if channel in ("x", "y", "color") and encoding.get("type") == "quantitative" and encoding.get("title")
        }
        assert titles
        assert all(any(unit in title for unit in UNITS) for title in titles), titles
        assert (panel.spec["width"], panel.spec["data"]) == ("container", {"name": "rows"})
        # What a transformation of the specification computes is in no record.
        assert fields(panel.spec) <= set(first) | {"room"}


def test_alpha_is_drawn_against_the_network_as_given() -> None:
    run = made_run(HERE, made_scenario(rewrites=alphas(), schedulers=["sequential"]))
    latency_ms = {(row.model, row.rewrite): row.latency_ms for row in run.results.rows}
    drawn = figure(run, "alpha")
    assert [record["alpha"] for record in drawn.records] == [1.0, 1.0, 1.1, 1.1]
    for record in drawn.records:
        model = str(record["model"])
        own_ms, given_ms = latency_ms[model, f"alpha {record['alpha']}"], latency_ms[model, "as given"]
        assert own_ms
        assert given_ms
        assert record["of_given_percent"] == pytest.approx(100 * own_ms / given_ms)
    assert "alpha" in [each.name for each in figures(run)]
    without = made_run(HERE, made_scenario(rewrites=alphas()[1:]))
    assert figures(without, ["alpha"]) == []


def test_bars_have_the_values_of_the_rows_whiskers_and_ties() -> None:
    run = made_run(HERE, made_scenario(batch_sizes=[32]), failed=1)
    drawn = figure(run, "latency")
    for row, record in zip(run.results.rows, drawn.records, strict=True):
        assert record["latency_ms"] == row.latency_ms
        assert (record["low_ms"], record["high_ms"]) == (row.low_ms, row.high_ms)
        assert str(record["text"]).endswith("≈") == (row.scheduler == "greedy" and row.point == 0)
    failed = drawn.records[-1]
    assert failed["text"] == "failed"
    assert "too large for it" in str(failed["note"])
    (panel,) = drawn.panels
    marks = [layer["mark"]["type"] for layer in panel.spec["layer"]]
    assert marks[0] == "bar"
    assert {"rule", "text"} <= set(marks)
    ends = {encoding.get("field") for mark, channel, encoding in encodings(panel.spec) if mark == "rule"}
    assert {"low_ms", "high_ms"} <= ends


def test_devices_are_held_against_the_limit_the_fastest_first() -> None:
    """All of them, however many, each by its best schedule; the finding counts those within."""
    run = made_run(
        HERE,
        made_scenario(
            models=[Model(model="squeezenet")], devices=devices(20), batch_sizes=[1], questions=[Question(at_most=5)]
        ),
    )
    drawn = figure(run, "devices")
    latencies_ms = [record["latency_ms"] for record in drawn.records]
    assert latencies_ms == sorted(latencies_ms)
    assert len({record["group"] for record in drawn.records}) == len(latencies_ms) == 20
    for record in drawn.records:
        own = [row for row in run.results.rows if row.device == record["device"] and row.latency_ms is not None]
        assert record["latency_ms"] == min(row.latency_ms for row in own)
        assert all(row.board_power_w is None for row in own) or " W" in str(record["text"])
    within = sum(ms <= 5 for ms in latencies_ms)
    assert f"{within} of 20 devices" in drawn.finding


def test_points_with_as_many_devices_within_the_limit_are_told_together() -> None:
    """With twelve points a sentence of twelve equal counts would be read by nobody."""
    sizes = {"batch_sizes": [1, 8, 32], "dtypes": [Precision.FP32, Precision.FP16]}
    run = made_run(HERE, made_scenario(devices=devices(3), questions=[Question(at_most=1e6)], **sizes))
    models = len({row.model for row in run.results.rows})
    assert figure(run, "devices").finding == (
        f"Within 1e+06 ms are 3 of 3 devices, 3 with their whole interval, at {6 * models} points."
    )


def test_no_line_strikes_a_label_through() -> None:
    """Labels are drawn over the lines, each over its own shadow in the colour of the page."""
    drawn = figure(made_run(HERE, made_scenario(questions=[Question(at_most=5)])), "latency")
    marks = [layer["mark"] for layer in drawn.panels[0].spec["layer"]]
    last_line = max(place for place, mark in enumerate(marks) if mark["type"] in ("rule", "tick", "bar"))
    texts = [place for place, mark in enumerate(marks) if mark["type"] == "text"]
    assert min(texts) > last_line
    assert [marks[place].get("style") for place in texts] == [HALO, None]
    for theme, page in ((light(), "#ffffff"), (dark(), "#15181d"), (paper(), "#ffffff")):
        assert theme["style"][HALO]["stroke"] == page


def test_what_is_asked_for_is_a_line() -> None:
    drawn = figure(
        made_run(HERE, made_scenario(questions=[Question(at_most=5), Question(metric="latency_ms", at_most=4.5)])),
        "latency",
    )
    lines = [encoding["datum"] for mark, _, encoding in encodings(drawn.panels[0].spec) if "datum" in encoding]
    assert lines == [4.5]
    assert "asked for: at most 4.5 ms" in [entry.label for entry in drawn.legend]


def test_the_diagonal_of_a_matrix_is_of_the_rows() -> None:
    run = made_run(HERE, made_scenario(batch_sizes=[1, 16, 32], crossed=["batch"]))
    drawn = figure(run, "batch_specialisation")
    assert len(drawn.records) == 2 * 3 * 3 * len(SCHEDULERS)
    own = [record for record in drawn.records if record["own"]]
    assert len(own) == len(run.results.rows)
    assert all(record["slower_percent"] == 0 for record in own)
    others = [record for record in drawn.records if not record["own"]]
    assert all(record["slower_percent"] == pytest.approx(7) for record in others)
    assert {str(record["text"]).endswith("≈") for record in others} == {True, False}
    assert drawn.finding.startswith("The worst mismatch costs 7 % (")
    assert "'domain': [0.0, 20.0]" in str(drawn.panels[0].spec)


def test_texts_of_a_heat_map_can_be_read_on_every_colour() -> None:
    low, high = (_rgb(colour) for colour in vega.COLOURS)
    for step in range(101):
        part = step / 100
        colour = tuple(a + part * (b - a) for a, b in zip(low, high, strict=True))
        text = vega.TEXTS[part > vega.TURN]
        assert _contrast(colour, _rgb(text)) >= 4.5, part


def test_colours_of_schedulers_stay_and_can_be_seen_on_both_pages() -> None:
    all_marks = scheduler_marks(["sequential", "greedy", "ios-merge", "ios-parallel", "ios-both", "mine", "theirs"])
    assert len(set(all_marks.values())) == 7
    assert len({shape for _, shape in all_marks.values()}) == 7
    assert len(set(scheduler_marks([f"net{number}" for number in range(9)]).values())) == 9
    assert scheduler_marks(["ios-both"])["ios-both"] == all_marks["ios-both"]
    assert scheduler_marks(["theirs", "mine"])["mine"] == all_marks["mine"]
    for colour, _ in all_marks.values():
        for page in ("#ffffff", "#15181d"):
            assert _contrast(_rgb(colour), _rgb(page)) >= 3
    assert PALETTE[0] == all_marks["ios-both"][0]


@pytest.mark.parametrize(("theme", "page"), [(light(), "#ffffff"), (dark(), "#15181d"), (paper(), "#ffffff")])
def test_words_of_figures_can_be_read_on_their_page(theme: dict[str, Any], page: str) -> None:
    colours = [
        theme["axis"]["labelColor"],
        theme["axis"]["titleColor"],
        theme["text"]["color"],
        theme["title"]["color"],
    ]
    assert all(_contrast(_rgb(colour), _rgb(page)) >= 4.5 for colour in colours)


def test_axes_become_groups_panels_and_choices() -> None:
    def dealt(**changes: Any) -> tuple[str, str | None, list[str]]:
        rows = made_run(HERE, made_scenario(**changes)).results.rows
        laid = layout(rows, [group_of(rows)], [])
        return group_of(rows), laid.panel, [choice.key for choice in laid.choices]

    assert dealt(models=[Model(model="squeezenet")]) == ("model", None, [])
    assert dealt() == ("model", None, [])
    assert dealt(devices=devices(5)) == ("device", "model", [])
    assert dealt(devices=devices(5), batch_sizes=[1, 8, 32]) == ("device", "model", ["batch"])
    # What no screen has room for is chosen.
    assert dealt(devices=devices(40)) == ("model", None, ["device"])


def test_points_that_make_no_grid_stand_under_one_another() -> None:
    whole = made_run(HERE, made_scenario(devices=devices(2)))
    rows = [row for row in whole.results.rows if row.point in (0, 3)]
    run = StudyRun(HERE, whole.results.model_copy(update={"rows": rows}), {}, {})
    assert group_of(rows) == "point_label"
    drawn = figure(run, "speedup")
    assert {record["group"] for record in drawn.records} == {"inception_v3, gpu-0", "squeezenet, gpu-1"}


def test_ticks_of_a_logarithmic_axis() -> None:
    assert log_ticks([0.2, 7.0]) == [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]
    assert log_ticks([1, 20_000]) == [1, 10, 100, 1000, 10_000, 100_000]
    assert log_ticks([0.0]) == []


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))


def _contrast(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """WCAG 2.2's contrast ratio of two sRGB colours."""

    def luminance(rgb: tuple[float, ...]) -> float:
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light_one, dark_one = sorted((luminance(first), luminance(second)), reverse=True)
    return (light_one + 0.05) / (dark_one + 0.05)


def test_kinds_of_one_colour_share_an_entry_of_the_legend() -> None:
    run = made_run(HERE, time_by_kind_us={"relu": 1.0, "unary": 2.0, "conv": 3.0})
    assert [entry.label for entry in figure(run, "kinds").legend] == ["conv", "relu, unary"]
