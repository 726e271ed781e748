"""The page of a schedule: all that it says is of the schedule, and a unit that is chosen is lit everywhere."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import iossim
from iossim.ir.builder import GraphBuilder
from iossim.report.figures.graph import graph_svg, unit_names
from iossim.report.schedule_page import schedule_page
from iossim.report.schedule_tables import repeats, schedule_table, summary
from iossim.report.search_words import comparison_lines
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import StreamSchedule
from iossim.tasks.stream_explain import StreamExplanation, explain_streams

PHONE, DESK = (390, 844), (1280, 900)


@pytest.fixture(scope="module")
def network() -> iossim.Network:
    return iossim.load("inception_v3")


@pytest.fixture(scope="module")
def schedule(network: iossim.Network) -> iossim.Schedule:
    return iossim.optimize(network, "v100-sxm2")


@pytest.fixture(scope="module")
def page(network: iossim.Network, schedule: iossim.Schedule) -> str:
    spans = iossim.cost_model("simulator", "v100-sxm2").timeline(network, schedule)
    compared = iossim.compare(network, "v100-sxm2", schedulers=["sequential", "greedy"])
    said = ["Best: <one>", "≈ a tie"]
    return schedule_page(network, schedule, spans, said, iossim.explain(schedule, network), 6280.0, compared)


@pytest.fixture(scope="module")
def data(page: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def test_every_unit_has_its_stage_and_every_kernel_its_unit(
    data: dict[str, Any], network: iossim.Network, schedule: iossim.Schedule
) -> None:
    assert [unit["name"] for unit in data["units"]] == [unit.name for unit in network.units]
    named = [[[data["units"][unit]["name"] for unit in group] for group in stage["groups"]] for stage in data["stages"]]
    assert named == [stage.groups for stage in schedule.stages]
    expected = [stage.strategy is Strategy.MERGE for stage in schedule.stages]
    assert [stage["merged"] for stage in data["stages"]] == expected
    for stage, _, start, end, _, units in data["kernels"]:
        assert set(units) <= {unit for group in data["stages"][stage]["groups"] for unit in group}
        assert data["stages"][stage]["start"] <= start <= end <= data["stages"][stage]["end"]
    assert max(end for _, _, _, end, _, _ in data["kernels"]) == pytest.approx(schedule.latency_us, rel=0.02)
    assert all(stage["why"] for stage in data["stages"])


def test_it_says_what_the_terminal_said_and_where_the_latency_is_from(page: str) -> None:
    assert "<p>Best: &lt;one&gt;</p><p>≈ a tie</p>" in page
    (title,) = re.findall("<h1>(.*)</h1>", page)
    assert re.fullmatch(
        r"inception_v3 on v100-sxm2: 3\.\d{3} ms simulated, \d\.\d\d-\d\.\d\d ms expected on hardware \(90% interval\), "
        r"speed-up 1\.\d\dx over sequential",
        title,
    )


def test_it_is_one_small_file_that_loads_nothing(page: str) -> None:
    assert len(page.encode()) < 3_000_000
    assert not re.search(r"(src|href)=[\"'](?!data:|#)", page)
    assert "$" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)


def test_a_comparison_is_a_table_of_all_schedulers(
    page: str, network: iossim.Network, schedule: iossim.Schedule
) -> None:
    (table,) = re.findall(r"<table>(.*?)</table>", page)
    assert re.findall(r"<td[^>]*>(sequential|greedy)</td>", table) == ["sequential", "greedy"]
    assert "<table>" not in schedule_page(network, schedule, [])
    compared = iossim.compare("ios_sample", "v100-sxm2")
    (tie,) = compared.remarks
    again = schedule_page(iossim.load("ios_sample"), compared.best, [], comparison_lines(compared), comparison=compared)
    assert again.count(tie) == 1, "below the table that it explains, and not above it, too"


def test_one_stage_is_no_stages() -> None:
    b = GraphBuilder("one")
    network = b.network([b.conv(b.input("x", (1, 3, 8, 8)), 8)])
    found = iossim.optimize(network, "t4")
    assert "sequential · 1 stage · 1 stream" in schedule_page(
        network, iossim.optimize(network, "t4", scheduler="sequential"), []
    )
    assert " ms in 1 stage: 0 with" in summary(found)


@pytest.fixture(scope="module")
def streams() -> StreamExplanation:
    prices = iossim.cost_model("simulator", "v100-sxm2", engine="graph")
    network = iossim.load("squeezenet")
    found = iossim.optimize_streams(network, None, cost_model=prices)
    assert isinstance(found, StreamSchedule)
    return explain_streams(found, network, prices)


def test_streams_have_launches_waits_and_a_critical_path(streams: StreamExplanation) -> None:
    network, schedule = iossim.load("squeezenet"), streams.schedule
    page = schedule_page(network, schedule, streams.spans, explanation=streams, sequential_us=900.0)
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    data = json.loads(text)
    named = [[data["units"][unit]["name"] for unit in row["groups"][0]] for row in data["stages"]]
    assert named == [list(streams.units_of[one.unit]) for one in streams.launches]
    assert [row["critical"] for row in data["stages"]] == [one.is_critical for one in streams.launches]
    assert data["stages"][0]["why"] == ["starts at 0.0 us, on the critical path", "waited last for: begin"]
    assert len(data["waits"]) == sum(len(launch.after) for launch in schedule.launches) > 0
    starts = {(one.stream, round(one.start_us, 3)): one for one in streams.launches}
    ends = {one.unit: [one.stream, round(one.end_us, 3)] for one in streams.launches}
    for source, ended, lane, started, critical in data["waits"]:
        assert source != lane
        assert ended <= started
        # The path goes through the launch that a critical one waited for last.
        behind = starts[lane, started].behind
        assert critical == (starts[lane, started].is_critical and ends.get(behind) == [source, ended])
    for row, lane, start, end, _, units in data["kernels"]:
        launch = data["stages"][row]
        assert (str(lane), units) == (launch["label"], launch["groups"][0])
        assert launch["start"] <= start <= end <= launch["end"]
    drawn = graph_svg(network, schedule)
    assert drawn.count("class='edge wait'") == len(data["waits"])
    assert drawn.count("class='unit'") == len(network.units)
    assert (
        drawn.count("fill='url(#hatch)'") == sum(len(one.units) for one in schedule.launches if len(one.units) > 1) > 0
    )


def test_equal_layers_are_folded_in_table_and_page() -> None:
    network = iossim.load("gpt2")
    schedule = iossim.optimize(network, "t4")
    (fold,) = repeats(schedule)
    assert (fold.first, fold.count, fold.blocks) == (3, 33, "layer1-11")
    assert fold.words == "3 stages each, equal to stages 0-2"
    assert len(schedule_table(schedule).rows) == len(schedule.stages) - fold.count + 1
    page = schedule_page(network, schedule, iossim.cost_model("simulator", "t4").timeline(network, schedule))
    assert '"fold":[33,"layer1-11: 3 stages each, equal to stages 0-2"]' in page
    assert repeats(iossim.optimize("inception_v3", "t4")) == []


def test_units_have_the_shortest_names_that_no_other_of_their_block_has() -> None:
    network = iossim.load("nasnet_a")
    names = unit_names(network)
    assert names["cell_stem_0.comb_iter_0_right.sep1"] == "comb_iter_0_right.sep1"
    assert names["cell_stem_0.concat"] == "concat"
    for block in network.blocks:
        assert len({names[network.units[unit].name] for unit in block.units}) == len(block.units)


def test_a_picture_of_the_graph_has_a_legend_that_the_page_has_itself(
    page: str, network: iossim.Network, schedule: iossim.Schedule
) -> None:
    drawn = graph_svg(network, schedule)
    legend = "".join(re.findall(r"<text class='legend'.*?</text>", drawn))
    entries = re.findall(r"</tspan> ([^<\u2003]*)", legend)
    assert {"conv", "concat", "stage, tinted by block", "merged into one kernel"} <= set(entries)
    assert "class='legend'" not in page


def test_equal_arguments_give_equal_text(network: iossim.Network, schedule: iossim.Schedule) -> None:
    spans = iossim.cost_model("simulator", "v100-sxm2").timeline(network, schedule)
    assert schedule_page(network, schedule, spans) == schedule_page(network, schedule, spans)


def test_names_are_text_and_no_markup() -> None:
    network = iossim.load("ios_sample")
    schedule = iossim.optimize(network, "t4").model_copy(update={"network": "<b>&</b></script>"})
    spans = iossim.cost_model("simulator", "t4").timeline(network, schedule)
    page = schedule_page(network, schedule, spans)
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in page
    assert page.count("</script>") == 2


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=str)
def test_a_unit_that_is_chosen_is_lit_everywhere(
    browser: Any, page: str, data: dict[str, Any], size: tuple[int, int], scheme: str, tmp_path: Path
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    shown, said = context.new_page(), []
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on(
        "request", lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:")) else None
    )
    shown.goto((tmp_path / "index.html").as_uri())
    assert shown.locator("#timeline .kernel").count() == len(data["kernels"])
    numbers = shown.evaluate(
        "[...document.querySelectorAll('#timeline .number')].map(each => each.getBoundingClientRect())"
    )
    lines = {number["y"] for number in numbers}
    assert len(lines) == 4 if len(numbers) < len(data["stages"]) else len(lines) <= 4, "those without room are left out"
    for one, other in combinations(numbers, 2):
        apart = one["right"] <= other["left"] or other["right"] <= one["left"]
        assert apart or abs(one["y"] - other["y"]) >= 10, "no number covers another"
    assert shown.locator("#timeline svg").bounding_box()["y"] < size[1] / 2, "the picture is on the first screen"
    assert shown.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0

    def lit() -> dict[str, set[int]]:
        kernels = shown.evaluate("[...document.querySelectorAll('.kernel.lit')].map(each => +each.dataset.kernel)")
        found = {"timeline": {unit for kernel in kernels for unit in data["kernels"][kernel][5]}}
        for host in ("graph", "table"):
            units = f"[...document.querySelectorAll('#{host} [data-unit].lit')].map(each => +each.dataset.unit)"
            found[host] = set(shown.evaluate(units))
        return found

    merged = next(place for place, kernel in enumerate(data["kernels"]) if len(kernel[5]) > 1)
    shown.locator(f"[data-kernel='{merged}']").dispatch_event("click")
    assert lit() == {key: set(data["kernels"][merged][5]) for key in ("timeline", "graph", "table")}
    assert not axe.Axe().run(shown).response["violations"]
    shown.locator("#graph [data-unit='3']").dispatch_event("click")
    assert lit() == {key: {3} for key in ("timeline", "graph", "table")}
    assert data["units"][3]["name"] in shown.locator("#chosen").inner_text()
    shown.locator("#find").fill("mixed_6b.branch7x7_")
    found = [number for number, unit in enumerate(data["units"]) if "mixed_6b.branch7x7_" in unit["name"]]
    assert f"1 of {len(found)} with" in shown.locator("#chosen").inner_text()
    shown.locator("#find").press("Enter")
    assert lit()["graph"] == {found[1]}
    shown.locator("#find").press("Escape")
    shown.locator("#graph [data-unit='3']").dispatch_event("click")
    shown.keyboard.press("ArrowRight")
    assert lit()["graph"] == {4}
    before = shown.locator("#timeline svg").bounding_box()["width"]
    shown.keyboard.press("+")
    assert shown.locator("#timeline svg").bounding_box()["width"] == pytest.approx(2 * before, rel=0.01)
    assert lit()["timeline"] == {4}, "what is lit stays so"
    frame, bar = (shown.locator(at).first.bounding_box() for at in ("#timeline", ".kernel.lit"))
    assert frame["x"] <= bar["x"] <= frame["x"] + frame["width"], "the zoom is about what is chosen"
    shown.keyboard.press("Escape")
    assert lit() == {key: set() for key in ("timeline", "graph", "table")}
    assert said == []
    context.close()
