"""The report in a real browser: no errors and no requests; sorting, filtering, themes; widths of a phone and of a desk."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from made_studies import SCHEDULERS, made_run, made_scenario, published, searches, small_study

from iossim.study.axes import Device, Model
from iossim.study.question import Question, Range
from iossim.study.report.report import write_report
from iossim.study.sweep import run_study

pytest.importorskip("playwright.sync_api")
pytest.importorskip("altair")
pytest.importorskip("vl_convert")

pytestmark = pytest.mark.slow

PHONE, DESK = (390, 844), (1440, 900)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports by name: one that was run, one with every kind of figure that needs no schedules, one of a thousand points."""
    folder = tmp_path_factory.mktemp("reports")
    real = run_study(
        small_study(
            ("squeezenet",),
            devices=[Device(device="v100-sxm2"), Device(device="t4")],
            crossed=["device"],
            questions=[
                Question(smallest="device", having={"latency_ms": Range(at_most=5)}),
                Question(best="scheduler", for_each=["device", "batch"]),
            ],
        ),
        folder / "real",
        workers=1,
    )
    every = made_run(
        folder / "every",
        made_scenario(
            devices=[Device(device="v100-sxm2"), Device(device="a-gpu-with-a-rather-long-name (dram_gbps=450)")],
            batch_sizes=[1, 8, 32],
            searches=searches(),
            crossed=["batch", "device"],
            questions=[Question(metric="speedup"), Question(best="device"), Question(at_most=5)],
            published=[published(), published("It helps.", is_claimed=False)],
        ),
        failed=3,
        active_warps=900.0,
        peak_memory_mib=80.0,
        published_ms=4.2,
    )
    thousand = made_run(
        folder / "thousand",
        made_scenario(
            models=[Model(model=f"net{n}") for n in range(4)],
            devices=[Device(device=f"gpu-{n}") for n in range(25)],
            batch_sizes=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        ),
    )
    paths = {}
    for name, run in (("real", real), ("every", every), ("thousand", thousand)):
        paths[name] = folder / f"{name}.html"
        write_report(run, paths[name])
        assert paths[name].stat().st_size < 6_000_000
    return paths


#: Texts of a picture over one another or outside it: figure, text, what it is at odds with.
TEXTS_AT_ODDS = Path(__file__).with_name("texts_at_odds.js").read_text(encoding="utf-8")


class Opened:
    """A page, and what went wrong on it."""

    def __init__(self, browser: Any, path: Path, size: tuple[int, int], theme: str) -> None:
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=theme, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._heard)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.add_init_script(
            "window.longTasks = []; new PerformanceObserver((list) => window.longTasks.push(...list.getEntries()"
            ".map((task) => task.duration))).observe({type: 'longtask', buffered: true});"
        )
        self.page.goto(path.as_uri())

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def draw_all(self) -> None:
        """Scroll through, until every panel is drawn."""
        self.page.evaluate(
            """async () => {
                for (const panel of document.querySelectorAll('.panel:not([hidden])')) {
                    panel.scrollIntoView();
                    const chart = panel.querySelector('.chart');
                    for (let tries = 0; tries < 400 && !chart.dataset.drawn; tries += 1) {
                        await new Promise((resolve) => setTimeout(resolve, 25));
                    }
                }
                scrollTo(0, 0);
            }"""
        )
        undrawn = self.page.evaluate(
            "document.querySelectorAll('.panel:not([hidden]) .chart:not([data-drawn])').length"
        )
        assert undrawn == 0


Open = Callable[..., Opened]


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Open]:
    made: list[Opened] = []

    def make(name: str, size: tuple[int, int] = DESK, theme: str = "light") -> Opened:
        made.append(Opened(browser, pages[name], size, theme))
        return made[-1]

    yield make
    for each in made:
        each.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("name", ["real", "every", "thousand"])
def test_nothing_goes_wrong_is_fetched_overflows_or_overlaps(
    opened: Open, name: str, size: tuple[int, int], theme: str
) -> None:
    if name == "thousand" and theme == "dark":
        pytest.skip("what a theme changes is seen on the others")
    seen = opened(name, size, theme)
    seen.draw_all()
    assert seen.errors == []
    assert [url for url in seen.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert len([url for url in seen.requests if url.startswith("file:")]) == 1
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= size[0]
    # No picture is cut off by its frame.
    cut = seen.page.evaluate(
        """[...document.querySelectorAll('.panel:not([hidden]) .chart')]
            .filter((chart) => chart.scrollWidth > chart.clientWidth + 1)
            .map((chart) => chart.closest('figure').id)"""
    )
    assert cut == []
    # No texts of a picture overlap, or leave it.
    assert seen.page.evaluate(TEXTS_AT_ODDS) == []


ALL_DRAWN = "document.querySelectorAll('.panel:not([hidden]) .chart:not([data-drawn])').length === 0"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_print_has_every_figure_and_whole_tables(opened: Open, theme: str) -> None:
    """Nobody scrolls before printing; what a window scrolls, paper must show."""
    seen = opened("real", theme=theme)
    seen.page.wait_for_function(ALL_DRAWN)
    assert seen.page.evaluate("scrollY") == 0
    assert seen.page.locator(".panel:not([hidden]) .chart svg").count() > 3
    # A page of 8.5 inches without its margins.
    seen.page.set_viewport_size({"width": 736, "height": 1000})
    seen.page.emulate_media(media="print", color_scheme=theme)
    cut = seen.page.evaluate(
        """[...document.querySelectorAll('.scroll, .chart')].filter((each) => {
            const right = each.closest('main').getBoundingClientRect().right + 1;
            const inside = [...each.querySelectorAll('table, svg')];
            return inside.some((part) => part.getBoundingClientRect().right > right);
        }).length"""
    )
    assert cut == 0
    # Ink on paper; figures that were drawn for the dark page keep it behind them.
    assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    behind = {"light": "rgba(0, 0, 0, 0)", "dark": "rgb(21, 24, 29)"}[theme]
    assert seen.page.evaluate("getComputedStyle(document.querySelector('.chart')).backgroundColor") == behind
    assert seen.page.pdf().startswith(b"%PDF")
    assert seen.errors == []


def test_sorting_by_mouse_and_keyboard(opened: Open) -> None:
    page = opened("every").page
    head = page.locator("#table th", has_text="latency").first
    cells = "[...document.querySelectorAll('#table tbody tr')].map((row) => row.cells[PLACE].textContent)"
    place = head.evaluate("(head) => head.cellIndex")

    def column() -> list[float]:
        return [float(text) for text in page.evaluate(cells.replace("PLACE", str(place))) if text]

    before = column()
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    ascending = column()
    assert ascending == sorted(ascending)
    assert ascending != before
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column() == sorted(column(), reverse=True)
    # Words sort too, and one column at a time.
    page.locator("#table th", has_text="scheduler").get_by_role("button").press("Space")
    assert head.get_attribute("aria-sort") == "none"
    names = page.evaluate(
        cells.replace("PLACE", str(page.locator("#table th", has_text="scheduler").evaluate("(h) => h.cellIndex")))
    )
    assert names == sorted(names)
    assert page.locator("#table th[aria-sort='ascending']").count() == 1


def test_filtering_and_turning_pages(opened: Open) -> None:
    page = opened("thousand").page
    status = page.locator("#table [role=status]")
    assert status.text_content() == "3,000 rows"
    page.locator("#table select[data-filter=scheduler]").select_option(label="ios-both")
    assert status.text_content() == "1,000 of 3,000 rows"
    page.locator("#table select[data-filter=device]").select_option(label="gpu-3")
    assert status.text_content() == "40 of 3,000 rows"
    page.locator("#table input[type=search]").fill("net2")
    assert status.text_content() == "10 of 3,000 rows"
    assert page.locator("#table tbody tr").count() == 10
    assert set(page.locator("#table tbody tr td:nth-child(1)").all_text_contents()) == {"net2"}
    page.get_by_role("button", name="Clear filters").click()
    assert status.text_content() == "3,000 rows"
    shown = page.locator("#table tbody tr").first.text_content()
    page.locator("#table").get_by_role("button", name="Next").press("Enter")
    assert "rows 51 to 100 of 3,000" in page.locator("#table .pager").text_content()
    assert page.locator("#table tbody tr").first.text_content() != shown
    page.locator("#table").get_by_role("button", name="Previous").click()
    assert page.locator("#table tbody tr").first.text_content() == shown


def test_an_answer_shows_its_rows(opened: Open) -> None:
    page = opened("every").page
    page.get_by_role("button", name="Show the row behind it").first.click()
    assert page.locator("#table tbody tr").count() == 1
    assert page.evaluate("document.activeElement.id") == "rows-title"


def test_choices_change_what_is_drawn_and_keep_to_what_there_is(opened: Open) -> None:
    seen = opened("thousand")
    seen.draw_all()
    figure = seen.page.locator("figure#latency")
    select = figure.locator("select[data-choice]").first
    before = figure.locator(".chart svg").first.inner_html()
    options = select.locator("option").all_text_contents()
    assert len(options) > 1
    select.select_option(label=options[-1])
    figure.locator(".chart[data-drawn] svg").first.wait_for()
    seen.page.wait_for_function(
        "(before) => document.querySelector('figure#latency .chart svg')?.innerHTML !== before", arg=before
    )
    assert seen.errors == []


def test_the_data_of_a_figure_is_a_table_on_demand(opened: Open) -> None:
    page = opened("every").page
    for figure in page.locator("figure").all():
        summary = figure.locator("details.data summary")
        count = int(summary.text_content().split("(")[1].split(" ")[0].replace(",", ""))
        assert figure.locator("table").count() == 0
        summary.focus()
        page.keyboard.press("Enter")
        figure.locator("table").wait_for()
        assert f"{count:,} rows" in figure.locator("[role=status]").text_content()
        assert figure.locator("tbody tr").count() == min(count, 50)


@pytest.mark.parametrize("preferred", ["light", "dark"])
def test_the_theme_is_the_systems_until_it_is_chosen(opened: Open, preferred: str) -> None:
    seen = opened("every", theme=preferred)
    page = seen.page
    colour = "getComputedStyle(document.body).backgroundColor"
    pages = {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 29)"}
    other = {"light": "dark", "dark": "light"}[preferred]
    ink = "getComputedStyle(document.querySelector('figure#speedup .chart svg text')).fill"
    page.locator("figure#speedup").scroll_into_view_if_needed()
    page.locator("figure#speedup .chart[data-drawn] svg").first.wait_for()
    first = page.evaluate(ink)
    toggle = page.get_by_role("button", name="Dark theme")
    assert page.evaluate(colour) == pages[preferred]
    assert toggle.get_attribute("aria-pressed") == str(preferred == "dark").lower()
    toggle.focus()
    page.keyboard.press("Enter")
    assert page.evaluate(colour) == pages[other]
    assert toggle.get_attribute("aria-pressed") == str(other == "dark").lower()
    page.wait_for_function(
        f"(first) => document.querySelector('figure#speedup .chart svg text') && {ink} !== first", arg=first
    )
    assert seen.errors == []


def test_pictures_are_saved_with_their_legend(opened: Open) -> None:
    seen = opened("every", theme="dark")
    seen.draw_all()
    for kind, magic in (("svg", b"<svg"), ("png", b"\x89PNG")):
        button = seen.page.get_by_role("button", name="Save figure Speed-up by scheduler", exact=False)
        with seen.page.expect_download() as download:
            button.and_(seen.page.locator(f"[data-save={kind}]")).first.click()
        contents = Path(download.value.path()).read_bytes()
        assert contents.startswith(magic)
        if kind == "svg":
            assert all(f">{name}<".encode() in contents for name in SCHEDULERS if name != "sequential")
    assert seen.errors == []


def test_everything_is_reached_by_keyboard_in_order_and_seen(opened: Open) -> None:
    page = opened("every", PHONE).page
    places: list[float] = []
    names: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        focus = page.evaluate(
            """() => {
                const at = document.activeElement;
                const style = getComputedStyle(at);
                return [at.tagName, at.textContent.trim().slice(0, 30) || at.ariaLabel || at.labels?.[0]?.textContent || '',
                    at.getBoundingClientRect().top + scrollY, style.outlineStyle, parseFloat(style.outlineWidth)];
            }"""
        )
        if focus[0] == "BODY":
            break
        names.append(focus[1])
        places.append(focus[2])
        assert focus[1], focus
        assert focus[3] != "none", focus
        assert focus[4] >= 2, focus
    assert names[0] == "Skip to the answers"
    assert names[1] == "Dark theme"
    assert len(names) > 30
    # From top to bottom, but for what stands side by side.
    assert all(after > before - 60 for before, after in pairwise(places[2:]))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["real", "every"])
def test_axe_finds_nothing(opened: Open, name: str, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    seen = opened(name, theme=theme)
    seen.draw_all()
    # One figure's data and command stand for all, which are alike.
    for summary in seen.page.locator("figure#speedup summary, #how summary").all():
        summary.click()
    # A picture is one image to whoever cannot see it; what is inside has no roles of its own.
    results = axe.Axe().run(
        seen.page,
        context={"exclude": [[".chart svg"]]},
        options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]},
    )
    violations = [
        (each["id"], node["target"], node["failureSummary"][:200])
        for each in results.response["violations"]
        for node in each["nodes"][:2]
    ]
    assert violations == []
    assert len(results.response["passes"]) > 20


def test_a_thousand_points_cost_no_more_than_a_few(opened: Open) -> None:
    seen = opened("thousand")
    page = seen.page
    nodes = "document.querySelectorAll('*').length"
    before = page.evaluate(nodes)
    assert before < 4000
    page.locator("#rows").scroll_into_view_if_needed()
    # Filtering and sorting touch one page of rows, and hold nothing up for as long as one would notice.
    page.evaluate("window.longTasks.length = 0")
    for word in ("net1", "gpu-7", ""):
        page.locator("#table input[type=search]").fill(word)
    for head in page.locator("#table th button").all()[:4]:
        head.click()
        head.click()
    page.wait_for_timeout(100)
    assert page.locator("#table tbody tr").count() == 50
    own = page.evaluate("document.querySelector('#table').querySelectorAll('*').length")
    assert own < 2500
    seen.draw_all()
    after = page.evaluate(nodes)
    assert after < 15_000
    assert seen.errors == []
