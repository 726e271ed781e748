"""The pictures: all kernels drawn, labels only where they fit, the same bytes each time, in each format."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_timelines import fake_execution, fake_timeline
from random_networks import random_network, random_schedule, sequential_schedule

from iossim.analysis.comparison import ComparisonRow
from iossim.errors import OptionError
from iossim.ir.network import Network
from iossim.models.load import load
from iossim.reporting.active_warps_plot import active_warps_figure
from iossim.reporting.comparison_plot import comparison_figure
from iossim.reporting.figures import save_figure
from iossim.reporting.kind_colours import kind_colour, kind_colours, op_kind, text_on
from iossim.reporting.scheduler_colours import scheduler_marks
from iossim.reporting.timeline_plot import timeline_figure
from iossim.schedule.schedule import Schedule

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle, StepPatch


@pytest.fixture
def network() -> Network:
    return random_network(5, blocks=12, units=9)


@pytest.fixture
def schedule(network: Network) -> Schedule:
    return random_schedule(network, 2)


def test_a_bar_for_each_kernel_over_several_rows(network: Network, schedule: Schedule) -> None:
    spans = fake_timeline(network, schedule, kernels=2)
    figure = timeline_figure(network, schedule, spans)
    bars = [
        (patch.get_x(), patch.get_width())
        for axes in figure.axes
        for container in axes.containers
        for patch in container
        if isinstance(patch, Rectangle)
    ]
    assert len(figure.axes) > 1
    expected = [(span.start_us, span.end_us - span.start_us) for span in spans]
    np.testing.assert_allclose(sorted(bars), sorted(expected))
    for axes in figure.axes:
        left, right = axes.get_xlim()
        for container in axes.containers:
            assert all(left <= p.get_x() and p.get_x() + p.get_width() <= right for p in container)


def test_rows_have_the_lanes_that_they_use(network: Network, schedule: Schedule) -> None:
    """No row keeps lanes for streams that run elsewhere."""
    spans = fake_timeline(network, schedule, kernels=2)
    lanes = []
    for axes in timeline_figure(network, schedule, spans).axes:
        left, right = axes.get_xlim()
        used = [span.stream for span in spans if left <= span.start_us < right]
        lanes.append(len(axes.get_yticks()))
        assert lanes[-1] == max(used) + 1
    assert len(set(lanes)) > 1


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
        spans = fake_timeline(network, schedule)
        figure = timeline_figure(network, schedule, spans)
        drawn = {
            to_hex(bar.get_facecolor())
            for axes in figure.axes
            for container in axes.containers
            for bar in container
            if isinstance(bar, Rectangle)
        }
        assert drawn == {kind_colour(op_kind(network, unit)) for unit in network.units}
        legend = {text.get_text(): to_hex(patch.get_facecolor()) for text, patch in _legend(figure)}
        assert all(legend[kind] == kind_colour(kind) for kind in legend if kind in kinds)
        assert "conv" in legend


def _legend(figure: Any) -> list[tuple[Any, Any]]:
    (legend,) = figure.legends
    return list(zip(legend.get_texts(), legend.get_patches(), strict=True))


def test_text_on_a_colour_is_black_or_white() -> None:
    assert [text_on(colour) for colour in ("#ffffff", "#000000", "#0072b2", "#f2c866")] == [
        "black",
        "white",
        "white",
        "black",
    ]


def test_labels_stay_inside_their_bars(network: Network, schedule: Schedule) -> None:
    figure = timeline_figure(network, schedule, fake_timeline(network, schedule))
    figure.canvas.draw()
    renderer: Any = figure.canvas
    labels = 0
    for axes in figure.axes:
        bars = [bar.get_window_extent() for container in axes.containers for bar in container]
        for text in axes.texts:
            if text.get_text() and "center" in text.get_verticalalignment():
                extent = text.get_window_extent(renderer.get_renderer())
                assert any(bar.x0 - 1 <= extent.x0 and extent.x1 <= bar.x1 + 1 for bar in bars)
                labels += 1
    assert labels > 10


def test_the_title_names_network_device_latency_and_speed_up(network: Network, schedule: Schedule) -> None:
    priced = schedule.model_copy(update={"latency_us": 2000.0, "lower_bound_us": 1600.0})
    figure = timeline_figure(network, priced, fake_timeline(network, schedule), sequential_us=3000.0)
    first, second = (text.get_text() for text in figure.texts)
    assert first == "random5 on test-device"
    assert second.startswith("2.000 ms, speed-up 1.50x over sequential, lower bound 1.600 ms (gap 25.0 %)")
    assert "batch 1  ·  fp32  ·  paper engine  ·  random" in second


def test_a_timeline_of_one_stage_and_one_of_nothing(network: Network) -> None:
    schedule = sequential_schedule(network)
    timeline_figure(network, schedule, fake_timeline(network, schedule)[:1])
    timeline_figure(network, schedule, [])


@pytest.mark.parametrize(("ending", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_same_figure_gives_the_same_file(
    tmp_path: Path, network: Network, schedule: Schedule, ending: str, magic: bytes
) -> None:
    paths = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for path in paths:
        save_figure(timeline_figure(network, schedule, fake_timeline(network, schedule)), path)
    assert paths[0].read_bytes().startswith(magic)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_an_unknown_format(tmp_path: Path, network: Network, schedule: Schedule) -> None:
    figure = timeline_figure(network, schedule, fake_timeline(network, schedule))
    with pytest.raises(OptionError, match=r"cannot draw 'a.bmp': a picture is one of .svg, .png, .pdf"):
        save_figure(figure, tmp_path / "a.bmp")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib(network: Network, schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **others: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(OptionError, match=r"pictures need matplotlib, .* pip install 'iossim\[report\]'"):
        timeline_figure(network, schedule, [])


def test_the_comparison_draws_every_scheduler_bound_and_published_figure() -> None:
    rows = [
        ComparisonRow("sequential", 6000.0, 1.0, 10, 1, 0.0, 3000.0, 7000.0),
        ComparisonRow("ios-both", 4000.0, 1.5, 5, 3, 0.1, 3500.0, ties=("ios-parallel",)),
        ComparisonRow("ios-parallel", 4050.0, 1.48, 5, 3, 0.1, 3500.0, ties=("ios-both",)),
    ]
    figure = comparison_figure("title", {"one": rows, "two": rows[:1]})
    one, two = figure.axes
    bars = [bar for container in one.containers for bar in container if isinstance(bar, Rectangle)]
    assert [bar.get_width() for bar in bars] == [6.0, 4.0, 4.05]
    # The same colours as in a study's report.
    marks = scheduler_marks([row.scheduler for row in rows])
    assert [to_hex(bar.get_facecolor()) for bar in bars] == [marks[row.scheduler][0] for row in rows]
    assert [text.get_text() for text in one.texts] == ["6.000 ms  1.00x", "4.000 ms  1.50x", "4.050 ms  1.48x ≈"]
    assert [text.get_fontweight() for text in one.texts] == ["normal", "bold", "normal"]
    assert [line.get_xdata() for line in one.lines] == [[7.0]]
    assert len(one.collections) == 3
    assert [len(axes.get_yticks()) for axes in (one, two)] == [3, 1]
    entries = [text.get_text() for text in figure.legends[0].texts]
    assert entries == ["bold: the best", "≈ a tie with it", "lower bound", "published"]


def test_the_occupancy_strip_stands_below_the_lanes_of_every_row(network: Network, schedule: Schedule) -> None:
    spans = fake_timeline(network, schedule)
    plain, figure = (timeline_figure(network, schedule, spans, execution=e) for e in (None, fake_execution(spans)))
    for before, axes in zip(plain.axes, figure.axes, strict=True):
        lanes = len(before.get_yticks())
        assert [label.get_text() for label in axes.get_yticklabels()][lanes:] == ["occupancy"]
        strips = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
        assert len(strips) == 2
        for strip in strips:
            heights = strip.get_data().values
            assert ((heights > lanes - 0.5) & (heights < lanes + 0.5)).all()
    assert "block by block" in figure.texts[1].get_text()
    assert "block by block" not in plain.texts[1].get_text()


def test_active_warps_of_two_runs_on_one_scale(network: Network, schedule: Schedule) -> None:
    slow = fake_execution(fake_timeline(network, sequential_schedule(network)))
    fast = fake_execution(fake_timeline(network, schedule))
    figure = active_warps_figure("small on test-device", {"sequential": slow, "ios": fast})
    first, second = figure.axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_ylim() == second.get_ylim()
    assert first.get_xlim()[1] > slow.latency_us
    ratio = fast.mean_active_warps / slow.mean_active_warps
    assert first.get_title(loc="left").startswith(f"sequential: {slow.latency_us / 1000:.3f} ms")
    assert second.get_title(loc="left").endswith(f"{ratio:.2f}x")
    for axes, run in zip(figure.axes, (slow, fast), strict=True):
        drawn = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
        np.testing.assert_array_equal(drawn[0].get_data().values, run.active_warps)
        np.testing.assert_array_equal(drawn[0].get_data().edges, run.time_us)
    assert active_warps_figure("nothing", {}).axes == []
