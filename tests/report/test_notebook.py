"""What a notebook shows of networks, schedules, comparisons and studies: every row, every unit, and one line where it cannot."""

import json
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from graph_builders import builder_with
from html_outline import Outline
from made_studies import made_run, made_scenario

import iossim
from iossim.base.errors import OptionError
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.models.onnx.export import write_onnx
from iossim.report.figures.graph import graph_svg
from iossim.search.options import SearchLimits, SearchOptions

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
