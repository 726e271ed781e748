"""The figures of a schedule and of a comparison: all kernels drawn, labels only where they fit, the same bytes each time."""

import builtins
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_timelines import fake_execution, fake_timeline
from graph_builders import builder_with
from random_networks import random_network, random_schedule, sequential_schedule

from iossim.base.errors import OptionError
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.network import Network
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.unary import Cast, Relu, Sigmoid
from iossim.ir.shown_names import shown_names
from iossim.models.load import load
from iossim.report.colours import kind_colour, kind_colours, scheduler_marks, text_on
from iossim.report.figures.bars import comparison_figure
from iossim.report.figures.figure import Figure, Panel
from iossim.report.figures.graph import graph_svg, short_name
from iossim.report.figures.schedule_timeline import timeline_figure
from iossim.report.figures.timeline import (
    LABEL_PIXELS,
    NUMBER_PIXELS,
    active_warps_figure,
    colours_by_time,
    fitting_label,
    staggered,
    text_pixels,
)
from iossim.report.figures.vega import picture_files, whole_specification
from iossim.report.schedule_tables import run_words
from iossim.report.traces import counters
from iossim.schedule.schedule import Schedule
from iossim.tasks.comparison import ComparisonRow

pytest.importorskip("altair")
pytest.importorskip("vl_convert")


@pytest.fixture
def network() -> Network:
    return random_network(5, blocks=12, units=9)


@pytest.fixture
def schedule(network: Network) -> Schedule:
    return random_schedule(network, 2)


def drawn(figure: Figure, panel: Panel, what: str) -> list[Mapping[str, Any]]:
    return [record for record in figure.records_of(panel, {}) if record["what"] == what]


def domain(panel: Panel) -> tuple[float, float]:
    """Where the time of a panel begins and ends."""
    first, *_ = panel.spec["layer"]
    low, high = first["encoding"]["x"]["scale"]["domain"]
    return low, high


def test_a_bar_for_each_kernel_over_several_rows(network: Network, schedule: Schedule) -> None:
    spans = fake_timeline(network, schedule, kernels=2)
    figure = timeline_figure(network, schedule, spans)
    assert len(figure.panels) > 1
    bars = []
    for panel in figure.panels:
        left, right = domain(panel)
        own = [(kernel["start_ms"], kernel["time_ms"]) for kernel in drawn(figure, panel, "kernel")]
        assert all(left <= start and start + time <= right for start, time in own)
        bars += own
    expected = [(span.start_us / 1e3, (span.end_us - span.start_us) / 1e3) for span in spans]
    np.testing.assert_allclose(sorted(bars), sorted(expected))
    assert len({round(right - left, 9) for left, right in map(domain, figure.panels)}) == 1


def test_a_kind_of_op_has_one_colour_in_all_networks_and_pictures() -> None:
    kinds = {node.op.kind for zoo in ("squeezenet", "resnet18", "nasnet_a") for node in load(zoo).graph.nodes}
    for some in (kinds, {"conv", "concat"}, {"concat", "unheard_of", "conv"}):
        assert kind_colours(some)["conv"] == kind_colour("conv")
        assert kind_colours(some).get("concat", kind_colour("concat")) == kind_colour("concat")
    assert list(kind_colours(["concat", "conv"])) == list(kind_colours(["conv", "concat"]))
    # Those of the zoo, of which most pictures are, differ from one another.
    assert len({kind_colour(kind) for kind in kinds}) == len(kinds)
    for zoo in ("squeezenet", "ios_sample"):
        network = load(zoo)
        schedule = sequential_schedule(network)
        figure = timeline_figure(network, schedule, fake_timeline(network, schedule))
        used = {record["kind"] for record in figure.records if record["what"] == "kernel"}
        assert used == {main_kind(network, unit) for unit in network.units}
        legend = {entry.label: entry.colour for entry in figure.legend}
        assert all(legend[kind] == kind_colour(kind) for kind in legend if kind in kinds)
        assert "conv" in legend


@pytest.mark.parametrize(
    ("units", "name", "shown"), [("model", "conv1", "conv1"), ("fused", "conv1.relu", "conv1.conv")]
)
def test_a_unit_shows_its_op_of_the_most_work(units: str, name: str, shown: str) -> None:
    network = load("squeezenet", units=units)
    assert shown_names(network)(name) == shown


def test_kinds_that_take_the_most_time_come_first() -> None:
    kernels = [{"what": "kernel", "kind": kind, "time_ms": ms} for kind, ms in (("conv", 1), ("add", 2), ("conv", 2))]
    expected = ["conv", "add", "relu"]
    assert list(colours_by_time([*kernels, {"what": "stage"}, {**kernels[0], "kind": "relu"}])) == expected


def test_a_branch_lies_below_the_unit_that_it_reads() -> None:
    """Centred, it hid the edges of the branches beside it; what joins several stays in the middle."""
    boxes = re.findall(r"<title>(\w+): .*?<rect x='([\d.]+)'", graph_svg(load("ios_sample")))
    places = {name: float(x) for name, x in boxes}
    assert places["d"] == places["a"] < places["b"] == places["concat"] < places["c"]


def test_text_on_a_colour_is_black_or_white() -> None:
    colours = ("#ffffff", "#000000", "#0072b2", "#f2c866")
    assert [text_on(colour) for colour in colours] == ["black", "white", "white", "black"]


def test_labels_stay_inside_their_bars(network: Network, schedule: Schedule) -> None:
    """Their width is estimated by the letter, of the font that pictures are drawn with."""
    figure = timeline_figure(network, schedule, fake_timeline(network, schedule))
    labels = 0
    for panel in figure.panels:
        left, right = domain(panel)
        pixels_per_ms = figure.panel_pixels / (right - left)
        kernels = drawn(figure, panel, "kernel")
        for label in drawn(figure, panel, "label"):
            half_ms = 0.5 * len(label["text"]) * LABEL_PIXELS * 0.54 / pixels_per_ms
            ends = (label["start_ms"] - half_ms, label["start_ms"] + half_ms)
            own = [kernel for kernel in kernels if kernel["stream"] == label["stream"]]
            assert any(kernel["start_ms"] <= ends[0] and ends[1] <= kernel["end_ms"] for kernel in own)
            labels += 1
    assert labels > 10


def test_every_block_and_stage_is_labelled_and_no_label_covers_another(network: Network, schedule: Schedule) -> None:
    """The names of blocks that are close stand on lines of their own, above the numbers of stages."""
    long = [one.model_copy(update={"name": f"encoder_{one.name}" * 4}) for one in schedule.blocks]
    named = schedule.model_copy(update={"blocks": long})
    figure = timeline_figure(network, named, fake_timeline(network, named))
    lines, shortened = set(), set()
    for panel in figure.panels:
        left, right = domain(panel)
        pixels_per_ms = figure.panel_pixels / (right - left)
        stages, blocks = drawn(figure, panel, "stage"), drawn(figure, panel, "block")
        names = list(dict.fromkeys(stage["unit"] for stage in stages))
        for block, name in zip(blocks, names, strict=True):
            is_beyond = (block["start_ms"] - left) * pixels_per_ms + text_pixels(name, 10.5) + 8 > figure.panel_pixels
            assert block["text"] == (short_name(name) if is_beyond else name)
            shortened.add(is_beyond)
        assert min(block["above"] for block in blocks) > max(stage["above"] for stage in stages) + NUMBER_PIXELS
        lines |= {block["above"] for block in blocks}
        ends = [(one["above"], one["start_ms"] * pixels_per_ms, len(one["text"]) * 5.4) for one in blocks]
        ends += [(one["above"], (one["start_ms"] + one["end_ms"]) / 2 * pixels_per_ms, 4.9) for one in stages]
        for (line, begin, width), (other, after, _) in pairwise(sorted(ends)):
            assert line != other or begin + width <= after
    assert len(lines) > 1
    assert shortened == {False, True}
    assert staggered([(0, 9), (8, 30), (10, 12), (12, 14)]) == [0, 1, 0, 0]


def test_a_label_is_shortened_to_its_end_where_that_has_room() -> None:
    texts, letter = ["mixed.branch7x7", "branch7x7"], LABEL_PIXELS * 0.54
    fitted = {letters: fitting_label(texts, letters * letter + 0.1) for letters in (15, 14, 8, 5)}
    assert fitted == {15: "mixed.branch7x7", 14: "branch7x7", 8: "…anch7x7", 5: ""}


def test_the_title_names_network_device_latency_and_speed_up(network: Network, schedule: Schedule) -> None:
    priced = schedule.model_copy(update={"latency_us": 2000.0, "lower_bound_us": 1600.0})
    figure = timeline_figure(network, priced, fake_timeline(network, schedule), sequential_us=3000.0)
    whole = whole_specification(figure, {}, titled=True)
    assert f"'width': {figure.panel_pixels}" in str(whole)
    title = whole["title"]
    assert title["text"] == "random5 on test-device"
    said, facts = title["subtitle"]
    assert said == "2.000 ms priced by test, speed-up 1.50x over sequential, lower bound 1.600 ms (gap 25.0%)"
    assert facts.startswith("batch 1 · fp32 · paper engine · random")
    judged = {"cost_model": {"name": "simulator"}, "interval_us": [1800.0, 2200.0], "ties": ["sequential"]}
    figure = timeline_figure(network, priced.model_copy(update=judged), fake_timeline(network, schedule), 2000.0)
    expected = "2.000 ms simulated, 1.80-2.20 ms expected on hardware (90% interval)"
    assert figure.finding.startswith(f"{expected}, speed-up 1.00x over sequential, within the noise, lower bound")


def test_a_timeline_of_one_stage_and_one_of_nothing(network: Network, tmp_path: Path) -> None:
    schedule = sequential_schedule(network)
    for spans in (fake_timeline(network, schedule)[:1], []):
        figure = timeline_figure(network, schedule, spans)
        for name, write in picture_files([figure], "svg", titled=True).items():
            write(tmp_path / name)


def test_the_same_figure_gives_the_same_file(tmp_path: Path, network: Network, schedule: Schedule) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
        figure = timeline_figure(network, schedule, fake_timeline(network, schedule))
        for name, write in picture_files([figure], "svg", "png", titled=True).items():
            write(tmp_path / folder / name)
    for name, magic in (("timeline.svg", b"<svg"), ("timeline.png", b"\x89PNG")):
        first, second = ((tmp_path / folder / name).read_bytes() for folder in "ab")
        assert first.startswith(magic)
        assert first == second
    assert len(list((tmp_path / "a").iterdir())) == 2


@pytest.mark.parametrize(("module", "package"), [("altair", "altair"), ("vl_convert", "vl-convert-python")])
def test_without_what_draws(
    module: str, package: str, network: Network, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **others: Any) -> Any:
        if name.startswith(module):
            raise ImportError(name)
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(OptionError, match=rf"needs {package}, .* pip install 'iossim\[report\]'"):
        picture_files([timeline_figure(network, schedule, fake_timeline(network, schedule))], "svg")


def test_the_comparison_draws_every_scheduler_bound_and_published_figure() -> None:
    rows = [
        ComparisonRow("sequential", 6000.0, 1.0, 10, 1, 0.0, 3000.0, 7000.0),
        ComparisonRow("ios-both", 4000.0, 1.5, 5, 3, 0.1, 3500.0, ties=("ios-parallel",)),
        ComparisonRow("ios-parallel", 4050.0, 1.48, 5, 3, 0.1, 3500.0, ties=("ios-both",)),
    ]
    figure = comparison_figure("title", {"one": rows, "two": rows[:1]})
    one, two = (figure.records_of(panel, {}) for panel in figure.panels)
    assert [record["latency_ms"] for record in one] == [6.0, 4.0, 4.05]
    assert [record["text"] for record in one] == ["6.000 ms  1.00x", "4.000 ms  1.50x", "4.050 ms  1.48x ≈"]
    assert [record["best"] for record in one] == [False, True, False]
    assert [record["published_ms"] for record in one] == [7.0, None, None]
    assert [record["bound_ms"] for record in one] == [3.0, 3.5, 3.5]
    assert len(two) == 1
    # The same colours as in a study's report.
    bars, *_ = figure.panels[0].spec["layer"]
    marks = scheduler_marks([row.scheduler for row in rows])
    assert bars["encoding"]["color"]["scale"]["range"] == [colour for colour, _ in marks.values()]
    assert [entry.label for entry in figure.legend] == ["lower bound", "published measurement"]
    marks = whole_specification(figure, {})["vconcat"][0]["data"]["values"]
    assert [(mark["shape"], mark["filled"]) for mark in marks] == [("M0,-0.7L0,0.7", False), ("diamond", False)]
    assert figure.finding.endswith("bold: the best, ≈ a tie with it")


def test_the_occupancy_stands_below_the_lanes_of_every_row(network: Network, schedule: Schedule) -> None:
    spans = fake_timeline(network, schedule)
    plain, figure = (timeline_figure(network, schedule, spans, execution=e) for e in (None, fake_execution(spans)))
    assert len(figure.panels) == 2 * len(plain.panels)
    for lanes, strip in zip(figure.panels[::2], figure.panels[1::2], strict=True):
        left, right = domain(lanes)
        assert domain(strip) == (left, right)
        assert drawn(figure, lanes, "kernel")
        steps = figure.records_of(strip, {})
        assert steps
        assert {step["what"] for step in steps} == {"occupancy"}
        assert all(left <= step["start_ms"] < step["end_ms"] <= right for step in steps)  # type: ignore[operator]
    assert "event-driven" in figure.finding
    assert "event-driven" not in plain.finding


def test_active_warps_of_two_runs_on_one_scale(network: Network, schedule: Schedule) -> None:
    slow = fake_execution(fake_timeline(network, sequential_schedule(network)))
    fast = fake_execution(fake_timeline(network, schedule))
    figure = active_warps_figure("small on test-device", {"sequential": slow, "ios": fast})
    first, second = figure.panels
    assert domain(first) == domain(second)
    assert first.spec["layer"][0]["encoding"]["y"]["scale"] == second.spec["layer"][0]["encoding"]["y"]["scale"]
    assert domain(first)[1] > slow.latency_us / 1e3
    ratio = fast.mean_active_warps / slow.mean_active_warps
    assert first.title.startswith(f"sequential: {slow.latency_us / 1000:.3f} ms")
    assert first.title.endswith("on average")
    assert second.title.endswith(f", {ratio:.2f} times as many")
    for panel, run in zip(figure.panels, (slow, fast), strict=True):
        own = figure.records_of(panel, {})
        assert [record["warps"] for record in own] == [*run.active_warps.tolist(), 0]
        np.testing.assert_allclose([record["time_ms"] for record in own], run.time_us / 1e3)  # type: ignore[arg-type]
    assert active_warps_figure("nothing", {}).panels == ()


def test_a_processor_has_busy_cores(network: Network, schedule: Schedule) -> None:
    """A core holds one thread: its warps would be its cores again."""
    spans = fake_timeline(network, schedule)
    busy = np.arange(len(fake_execution(spans).active_warps)) % 3
    run = replace(fake_execution(spans), active_warps=busy, sms_by_warps=np.stack([2 - busy, busy], axis=1))
    figures = timeline_figure(network, schedule, spans, execution=run), active_warps_figure("run", {"ios": run})
    labels = [entry.label for figure in figures for entry in figure.legend]
    assert "busy cores" in labels
    panels = [panel for figure in figures for panel in figure.panels]
    titles = re.findall(r"'title': '([^']*)'", str([panel.spec for panel in panels]))
    names = {each["name"] for each in counters(run)} | {panel.title for panel in panels}
    texts = [*labels, *titles, *names, *(figure.finding for figure in figures), run_words(run)]
    assert [text for text in texts if re.search(r"\bSMs\b|\bwarps\b", text)] == []
    assert sum("busy cores" in text for text in texts) >= 5


def test_specifications_are_vega_lite(network: Network, schedule: Schedule) -> None:
    import altair

    spans = fake_timeline(network, schedule)
    run = fake_execution(spans)
    row = ComparisonRow("ios-both", 4000.0, 1.5, 5, 3, 0.1, 3500.0, 4100.0, (3600.0, 4400.0))
    for figure in (
        timeline_figure(network, schedule, spans, execution=run),
        active_warps_figure("runs", {"ios": run}),
        comparison_figure("title", {"one": [row]}),
    ):
        for panel in figure.panels:
            altair.LayerChart.from_dict(dict(panel.spec))


def test_a_legend_has_each_colour_once_and_says_of_how_many_kinds() -> None:
    b, x = builder_with("alike", x=(1, 8, 8, 8))
    drawn = graph_svg(b.network([b.add(op, x, name=op.kind) for op in (Relu(), Sigmoid(), Unary("exp"), Cast("fp16"))]))
    (legend,) = re.findall("<text class='legend'.*?</text>", drawn)
    assert re.findall("</tspan> ([^<\u2003]*)", legend) == ["relu, unary and 1 more", "sigmoid"]
