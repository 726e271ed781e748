"""What a notebook shows of networks, schedules, comparisons and studies: every row, every unit, and one line where it cannot;
and tables at the width of a terminal, without colour.
"""

import json
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from graph_builders import builder_with
from html_outline import Outline
from made_studies import made_run, made_scenario
from random_networks import make_schedule, make_stage, sequential_schedule
from rich.console import Console
from rich.table import Table

import iossim
from iossim.base.errors import OptionError
from iossim.base.tables import Column, described_table, records_table, spelled
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.models.onnx.export import write_onnx
from iossim.report.figures.graph import graph_svg
from iossim.report.schedule_tables import repeats, schedule_table
from iossim.schedule.schedule import BlockSchedule
from iossim.search.options import SearchLimits, SearchOptions
from iossim.tasks.comparison import TIE, ComparisonRow, comparison_table

EXAMPLES = Path(iossim.__file__).resolve().parents[1] / "examples"


def names_of(html: str) -> list[str]:
    """Names of the elements of a whole piece of HTML."""
    outline = Outline(html)
    assert outline.open == []
    return outline.tags


@pytest.fixture(scope="module")
def network() -> iossim.Network:
    return iossim.load("squeezenet")


@pytest.fixture(scope="module")
def comparison(network: iossim.Network) -> iossim.Comparison:
    return iossim.compare(network, "t4", schedulers=["sequential", "greedy", "ios-both"])


def test_a_network_shows_its_graph(network: iossim.Network) -> None:
    names = names_of(network._repr_html_())
    assert names.count("svg") == 1
    assert names.count("title") == len(network.units)
    edges = sum(map(len, network.predecessors))
    assert names.count("path") == edges + 1  # and that of the hatching
    assert len(network.to_dataframe()) == len(network.units)
    assert network.to_dataframe().macs.sum() == network.statistics()["macs"]


def test_a_large_network_shows_its_graph_when_asked() -> None:
    network = iossim.load("nasnet_a")
    assert "<svg" not in network._repr_html_()
    assert f"{len(network.units)} units; .plot() draws it" in network._repr_html_()
    assert network.plot().svg.count("class='unit'") == len(network.units)


def test_a_schedule_shows_timeline_and_stages(comparison: iossim.Comparison, network: iossim.Network) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    best = comparison["ios-both"]
    names = names_of(best._repr_html_())
    assert names.count("svg") >= 1
    assert names.count("tr") == len(best.stages) + 1
    assert best.plot().svg == best.plot(network=network).svg
    frame = best.to_dataframe()
    assert frame.latency_us.sum() + frame.boundary_us.sum() == pytest.approx(best.latency_us)


def test_units_are_shown_by_their_convolution_and_data_keeps_their_names(tmp_path: Path) -> None:
    """A unit of a file is named by its last op: frames have both names, pictures, tables and notes the other."""
    b, x = builder_with("activations", x=(1, 8, 16, 16))
    for layer in range(2):
        x = b.add(Relu(), b.conv(x, 8, kernel=3, padding=1, name=f"conv{layer}"), name=f"relu{layer}")
        y = b.add(Relu(), b.conv(x, 8, name=f"side{layer}"), name=f"above{layer}")
        z = b.add(Relu(), b.conv(x, 8, name=f"down{layer}"), name=f"below{layer}")
        x = b.add(Concat(1), y, z, name=f"both{layer}")
    write_onnx(b.graph([x]), tmp_path / "m.onnx")
    network = iossim.load(tmp_path / "m.onnx")
    frame = network.to_dataframe().set_index("unit")
    assert dict(frame.shown_as)["above0"] == "side0"
    found = iossim.optimize(network, "t4", options=SearchOptions(limits=SearchLimits(2, 2)))
    assert set(found.to_dataframe().units.sum()) == set(frame.index)
    table = found._repr_html_().partition("<details>")[2]
    assert "side0" in table
    assert "above0" not in table
    assert found.notes[0].startswith("2 blocks, side0..both0 the first: too wide")


def test_a_schedule_without_a_device_shows_its_graph() -> None:
    found = iossim.optimize("ios_sample", None, cost_model="random:1")
    network = iossim.load("ios_sample")
    assert found.plot().svg == network.plot(schedule=found).svg != network.plot().svg
    assert found.plot().svg in found._repr_html_()


def test_a_front_end_gets_the_kinds_that_it_asks_for(network: iossim.Network, comparison: iossim.Comparison) -> None:
    for value in (network, comparison.best, comparison):
        made = value._repr_mimebundle_()
        assert made == {"text/html": value._repr_html_(), "text/plain": str(value)}
        assert value._repr_mimebundle_(include={"image/svg+xml"}) == {"image/svg+xml": value.plot().svg}
        assert list(value._repr_mimebundle_(exclude={"text/html"})) == ["text/plain"]


def test_completion_leaves_out_what_is_deprecated(comparison: iossim.Comparison) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in dir(comparison.best):
            if not name.startswith("_"):
                getattr(comparison.best, name)
    assert {"compare", "corun", "device", "explain", "load", "microbatch", "optimize", "predict"} < set(dir(iossim))


def test_a_comparison_shows_its_table(comparison: iossim.Comparison) -> None:
    names = names_of(comparison._repr_html_())
    assert names.count("tr") == 4
    frame = comparison.to_dataframe()
    assert list(frame.scheduler) == ["sequential", "greedy", "ios-both"]
    assert list(frame.latency_us) == [found.latency_us for found in comparison.schedules]


def test_a_comparison_prints_what_the_command_line_does(comparison: iossim.Comparison) -> None:
    *_, best, expected, claim = str(comparison).splitlines()
    assert best.startswith("Best: ios-both, ")
    assert expected.startswith("Expected on hardware: ")
    assert claim == "Provably optimal under this cost model (general stages)"
    assert f"<div>{expected}</div><div>{claim}</div>" in comparison._repr_html_()


#: What each result prints, and how many rows its data frame has.
RESULTS: dict[str, tuple[Callable[[iossim.Network, iossim.Schedule], Any], str, str, Callable[[Any], int]]] = {
    "explain": (
        lambda network, best: iossim.explain(iossim.optimize("ios_sample", "t4"), iossim.load("ios_sample")),
        "ios_sample on t4, batch 1, fp32, paper engine, ios-both: ",
        "Time by limit: ",
        lambda found: len(found.schedule.stages),
    ),
    "predict": (lambda network, best: iossim.predict(network, "t4"), "squeezenet on t4", "the 16 slowest (to_dataframe() has all)", lambda found: len(found.network.units)),
    "simulate_events": (lambda network, best: iossim.simulate_events(best), "Event-driven simulator: ", "Mean utilisation", lambda found: len(found.spans)),
    "microbatch": (lambda network, best: iossim.microbatch(network, "t4"), "30 kernels take", "fire2.squeeze.conv", lambda found: 30),
    "corun": (lambda network, best: iossim.corun(EXAMPLES / "corun" / "v100_fp64.csv", "v100-pcie-32gb"), "Concurrent: ", "Time lost to contention", lambda found: 4),
    "optimize_streams": (
        lambda network, best: iossim.optimize_streams(network, "v100-sxm2"),
        "squeezenet on v100-sxm2, batch 1, fp32, paper engine, ios-streams: ",
        "Lower bound of all streams",
        lambda found: len(found.launches),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_a_line_where_others_hold_them_and_print_tables(
    name: str, network: iossim.Network, comparison: iossim.Comparison, tmp_path: Path
) -> None:
    make, starts, says, rows = RESULTS[name]
    found = make(network, comparison["ios-both"])
    assert len(repr(found)) < 200
    assert "\n" not in repr(found)
    printed = str(found)
    assert printed.startswith(starts)
    assert says in " ".join(printed.split())
    assert len(printed) < 6_000
    names_of(found._repr_html_())
    assert len(found.to_dataframe()) == rows(found)
    found.save(tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))


def test_pictures_of_one_notebook_share_no_ids(comparison: iossim.Comparison, network: iossim.Network) -> None:
    """Else the second is clipped by the frame of the first."""
    pytest.importorskip("vl_convert")
    other = iossim.compare(network, "t4", schedulers=["sequential", "greedy"])
    pictures = [found.plot().svg for found in (comparison, other)]
    ids = [set(re.findall(r'id="([^"]+)"', svg)) for svg in pictures]
    assert all(ids)
    assert not ids[0] & ids[1]
    assert [set(re.findall(r"url\(#([^)]+)\)", svg)) for svg in pictures] == ids


def test_pictures_can_be_saved(comparison: iossim.Comparison, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    drawn = comparison.plot()
    drawn.save(tmp_path / "bars.svg")
    assert (tmp_path / "bars.svg").read_text(encoding="utf-8") == drawn._repr_svg_() == drawn.svg
    with pytest.raises(OptionError, match=r"bars.png' would be SVG; give it a name in .svg"):
        drawn.save(tmp_path / "bars.png")
    assert len(repr(drawn)) < 60


def test_a_study_shows_answers_and_rows(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", made_scenario())
    names = names_of(run._repr_html_())
    assert repr(run) == f"<StudyRun made: {len(run.results.rows)} rows, in {run.folder}>"
    assert str(run).startswith("A made-up study\n")
    assert names.count("tr") == len(run.results.rows) + 1
    assert list(run.to_dataframe().latency_ms) == [row.latency_ms for row in run.results.rows]


def test_without_pandas_one_line_says_what_to_install(network: iossim.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OptionError, match=r"^a data frame needs pandas, which is not installed; pip install pandas$"):
        network.to_dataframe()


def test_the_graph_of_a_schedule_has_a_band_a_stage(comparison: iossim.Comparison, network: iossim.Network) -> None:
    """Boxes stand in their stage's band, and every edge goes down."""
    best = comparison["ios-both"]
    root = ElementTree.fromstring(graph_svg(network, best))
    found = {each.get("class"): 0 for each in root.iter() if each.get("class")}
    for each in root.iter():
        if each.get("class"):
            found[each.get("class")] += 1
    assert found["band"] == len(best.stages)
    assert found["unit"] == len(network.units)
    assert found["edge"] == sum(map(len, network.predecessors))
    tops = {
        each.get("data-unit"): float(each.find("{*}rect").get("y")) for each in root.iter() if each.get("data-unit")
    }
    for each in root.iter():
        if each.get("class") == "edge":
            assert tops[each.get("data-from")] < tops[each.get("data-to")]
    stage_of = {unit: number for number, stage in enumerate(best.stages) for unit in stage.units}
    bands = [each.find("{*}rect") for each in root.iter() if each.get("class") == "band"]
    for number, unit in enumerate(network.units):
        band = bands[stage_of[unit.name]]
        top, height = float(band.get("y")), float(band.get("height"))
        assert top <= tops[str(number)] <= top + height - 22
    assert graph_svg(network, best) == graph_svg(network, best)


def lines(table: Table, width: int = 80) -> list[str]:
    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


ROWS = [
    ComparisonRow("sequential", 6470.1, 1.0, 119, 1, 0.012, 3900.0, 6700.0),
    ComparisonRow("greedy", 5470.1, 1.18, 40, 6, 0.013, 3900.0),
    ComparisonRow("ios-merge", 6170.1, 1.05, 110, 1, 0.512, 4100.0),
    ComparisonRow("ios-parallel", 4270.1, 1.515, 39, 6, 1.213, 3900.0),
    ComparisonRow("ios-both", 4203.4, 1.54, 38, 6, 1.3, 3850.0, 4100.0),
]


def test_the_comparison_of_five_schedulers_at_80_columns() -> None:
    assert lines(comparison_table(ROWS)) == [
        "             latency gain                search bound  gap published error",
        "scheduler         ms    x stages streams      s    ms    %        ms     %",
        "─" * 74,
        "sequential     6.470 1.00    119       1   0.01 3.900 65.9      6.70  -3.4",
        "greedy         5.470 1.18     40       6   0.01 3.900 40.3         -     -",
        "ios-merge      6.170 1.05    110       1   0.51 4.100 50.5         -     -",
        "ios-parallel   4.270 1.51     39       6   1.21 3.900  9.5         -     -",
        "ios-both       4.203 1.54     38       6   1.30 3.850  9.2      4.10   2.5",
    ]


def test_errors_stand_beside_those_that_leave_the_network_out() -> None:
    told = {"published_us": 4110.0, "left_out_us": 3700.0}
    rows = [replace(ROWS[3], ties=("ios-both",), **told), replace(ROWS[4], ties=("ios-parallel",), **told)]
    assert lines(comparison_table(rows)) == [
        "              latency gain                search bound gap published error   LOO",
        "scheduler          ms    x stages streams      s    ms   %        ms     %     %",
        "─" * 80,
        "ios-parallel≈   4.270 1.51     39       6   1.21 3.900 9.5      4.11   3.9 -10.0",
        "ios-both        4.203 1.54     38       6   1.30 3.850 9.2      4.11   2.3 -10.0",
    ]


def test_ties_with_the_best_are_marked() -> None:
    rows = [
        ComparisonRow("slow", 3.0, 1.0, 2, 1, 0.1, ties=("unrelated",)),
        ComparisonRow("near", 1.02, 2.9, 2, 1, 0.1, ties=("best",)),
        ComparisonRow("best", 1.0, 3.0, 2, 1, 0.1, ties=("near",)),
    ]
    first = [line.split()[0] for line in lines(comparison_table(rows))[-3:]]
    assert first == ["slow", f"near{TIE}", "best"]


def test_columns_without_a_figure_are_left_out() -> None:
    rows = [ComparisonRow("sequential", 6470.1, 1.0, 119, 1, 0.012)]
    expected = ["           latency gain                search", "scheduler       ms    x stages streams      s"]
    assert lines(comparison_table(rows))[:2] == expected


def test_a_schedule_stage_by_stage() -> None:
    b, x = builder_with("small", x=(1, 1, 4, 4))
    with b.block("main"):
        for name in "abcd":
            b.conv(x, 1, name=name)
    network = b.network(list("abcd"))
    stages = [make_stage([["a"], ["b"]], latency_us=12.25), make_stage([["c", "d"]], "merge", 1234.5)]
    schedule = make_schedule(network, [BlockSchedule(name="main", stages=stages)])
    assert [schedule.streams, len(schedule.stages)] == [2, 2]
    assert lines(schedule_table(schedule)) == [
        "small on test-device, batch 1, fp32, paper engine, random:",
        "1.247 ms",
        "            before latency",
        "stage block     us      us groups (one a line, > in order)",
        "─" * 58,
        "    0 main     0.0    12.2 a",
        "                           b",
        "    1          0.0 1,234.5 merge: c + d",
    ]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_layers_are_folded_that_repeat_another_at_least_twice(count: int) -> None:
    b, x = builder_with("layers", x=(1, 1, 4, 4))
    for index in range(count):
        with b.block(f"layer{index}"):
            x = b.conv(x, 1, name=f"conv{index}")
    folds = repeats(sequential_schedule(b.network([x])))
    assert [(fold.first, fold.count, fold.blocks) for fold in folds] == [(1, count - 1, f"layer1-{count - 1}")][
        : count - 2
    ]


def test_long_groups_wrap_and_numbers_stay_whole() -> None:
    b, x = builder_with("wide", x=(1, 1, 1, 1))
    names = [f"a_rather_long_name_{index}" for index in range(9)]
    with b.block("main"):
        for name in names:
            x = b.conv(x, 1, name=name)
    network = b.network([x])
    schedule = make_schedule(network, [BlockSchedule(name="main", stages=[make_stage([names])])])
    printed = lines(schedule_table(schedule))
    assert max(map(len, printed)) <= 80
    text = " ".join(" ".join(printed).split())
    assert all(name in text for name in names)


@pytest.mark.parametrize("width", [80, 60, 46])
def test_names_lose_their_beginning_and_a_row_stays_a_line(width: int) -> None:
    rows = [
        {"layer": f"bert.encoder.layers.{n}.attention.output.dense", "kind": "Gemm", "latency_us": 1234.5}
        for n in (1, 2)
    ]
    columns = [
        Column("layer", shortens=True),
        Column("kind"),
        Column("latency_us", digits=1),
        Column("text", wraps=True),
    ]
    printed = lines(records_table("", [{**row, "text": "a few words and a few more"} for row in rows], columns), width)
    body = printed[3:] if width > 60 else [line for line in printed[3:] if "Gemm" in line]
    assert max(map(len, printed)) <= width
    assert len(body) == 2
    assert all("1,234.5" in line for line in body)
    names = [line.split()[0] for line in body]
    assert all(name.startswith("…") and row["layer"].endswith(name[1:]) for name, row in zip(names, rows, strict=True))


def test_no_digit_is_lost_where_nothing_can_give_way() -> None:
    rows = [{f"a_{n}": 1234567 + n for n in range(6)}]
    printed = lines(records_table("", rows), 40)
    assert max(map(len, printed)) <= 40
    body = "".join(printed[next(n for n, line in enumerate(printed) if line.startswith("─")) + 1 :])
    assert sum(letter.isdigit() for letter in body) == len("1234567") * 6


def test_markup_in_a_name_is_printed_as_it_is() -> None:
    assert lines(records_table("[bold]t", [{"name": "[red]a[/red]"}]))[-1] == "[red]a[/red]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (True, "yes"), (False, "no"), (1170663, "1,170,663"), (91973 * 10**18, "9.197e+22"),
        (0.5, "0.50"), (1234.5, "1,234.50"), (7e12, "7.000e+12"), ("word", "word"),
    ],
)  # fmt: skip
def test_cells(value: str | float | None, text: str) -> None:
    assert spelled(value) == text


def test_a_described_table_has_the_columns_of_its_longest_record() -> None:
    head, _, *rows = lines(described_table("iossim.report", "choices", "", [{"unit": 1}, {"otherwise": 2, "unit": 3}]))
    assert (head.split(), [row.split() for row in rows]) == (["alternative", "unit"], [["1"], ["2", "3"]])
