"""The page of a study, its pictures and its tables: complete, self-contained, the same each time, and small."""

import builtins
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from html_outline import Outline
from made_studies import SCHEDULERS, made_run, made_scenario, published, searches, small_study

from iossim.base.errors import OptionError
from iossim.report.figures import vega
from iossim.report.figures.vega import MOST_SLICES, picture_files, whole_specification
from iossim.study.axes import Device, Model
from iossim.study.question import Question
from iossim.study.report.layout import fixed
from iossim.study.report.plots import figures
from iossim.study.report.report import page_data, report, row_columns, write_report
from iossim.study.study_run import StudyRun
from iossim.study.sweep import run_study

pytest.importorskip("altair")
pytest.importorskip("vl_convert")
pytest.importorskip("jinja2")


@pytest.fixture(autouse=True)
def _libraries_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundling the libraries takes seconds, and what they are is for the browser tests to say."""
    monkeypatch.setattr("iossim.study.report.report.libraries", lambda: "window.vegaEmbed = null;")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    """A study that was run: its schedules are there."""
    scenario = small_study(("ios_sample",), devices=[Device(device="v100-sxm2")], batch_sizes=[1, 8])
    return run_study(scenario, tmp_path_factory.mktemp("real") / "run", workers=1)


def test_the_page_is_whole_and_says_the_answer_first(tmp_path: Path) -> None:
    claims = [published(), published("It helps.", is_claimed=False)]
    scenario = made_scenario(questions=[Question(metric="speedup")], published=claims, batch_sizes=[1, 8, 32])
    run = made_run(tmp_path, scenario, failed=2)
    text = report(run)
    outline = Outline(text)
    assert not outline.open
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.tags.count("h1") == 1
    assert outline.tags.count("figure") == len(figures(run))
    # Nothing is fetched: links lead within the page.
    assert all(link.startswith(("#", "data:")) for link in outline.links)
    assert {link[1:] for link in outline.links if link.startswith("#")} <= set(outline.ids)
    assert "default-src 'none'" in text
    positions = [text.index(f'id="{name}"') for name in ("answers", "figures", "rows", "how")]
    assert positions == sorted(positions)
    for said in (
        "What would be, if &lt;this&gt; &amp; that?",
        "The answer to: What is the highest speed-up?",
        "It is 1.5 times as fast.",
        "a thesis, figure 1",
        "✓ holds",
        "No claim is made of this",
        "1 row: the model is too large for it; take a smaller one",
        "iossim study run made",
    ):
        assert said in text, said


def test_the_top_of_the_page_names_what_is_the_same_for_all_rows(tmp_path: Path) -> None:
    text = report(made_run(tmp_path, made_scenario(models=[Model(model="squeezenet")], dtypes=["fp16"])))
    top = text[: text.index('id="answers"')]
    for name, value in (("model", "squeezenet"), ("device", "v100-sxm2"), ("data type", "fp16"), ("batch size", "1")):
        assert f"<span>{name} <b>{value}</b></span>" in top
    # Facts that say nothing about the subject stand at the table of the rows.
    assert "cost model" not in top
    assert "cost model simulator, " in text[text.index('id="rows"') : text.index('id="how"')]


def test_what_is_within_the_noise_is_no_fact(tmp_path: Path) -> None:
    run = made_run(tmp_path, made_scenario(published=[published()]))
    noise = [answer.model_copy(update={"within_noise": True}) for answer in run.results.answers]
    text = report(replace(run, results=run.results.model_copy(update={"answers": noise})))
    assert "≈ within the noise" in text
    assert "✓ holds" not in text


def test_an_answer_of_several_cases_is_a_table(tmp_path: Path) -> None:
    run = made_run(tmp_path, made_scenario(questions=[Question(best="scheduler")]))
    cases = [{"model": "one", "latency": "1 ms"}, {"model": "<two>", "a tie with": "greedy"}]
    (answer,) = run.results.answers
    several = [answer.model_copy(update={"cases": cases})]
    text = report(replace(run, results=run.results.model_copy(update={"answers": several})))
    table = text[text.index('<table class="cases">') : text.index("</table>")]
    assert re.findall(r'<th scope="col">(.*?)</th>', table) == ["model", "latency", "a tie with"]
    assert re.findall(r"<td[^>]*>(.*?)</td>", table) == ["one", "1 ms", "", "&lt;two&gt;", "", "greedy"]
    assert answer.answer not in text.replace(json.dumps(answer.answer), "")
    alone = report(
        replace(
            run, results=run.results.model_copy(update={"answers": [answer.model_copy(update={"cases": cases[:1]})]})
        )
    )
    assert f"<p>{answer.answer}</p>" in alone


def test_the_data_of_the_page_are_the_rows(tmp_path: Path) -> None:
    run = made_run(tmp_path, made_scenario(batch_sizes=[1, 8]), failed=1)
    data = json.loads(page_data(run, figures(run)))
    table = data["table"]
    assert table["count"] == len(run.results.rows)
    columns = {column["key"]: column for column in table["columns"]}
    assert [column["key"] for column in table["columns"]][:3] == ["model", "batch", "scheduler"]
    for place, row in enumerate(run.results.rows):
        assert _cell(columns["model"], place) == row.model
        assert _cell(columns["batch"], place) == row.batch
        assert _cell(columns["latency_ms"], place) == (row.latency_ms and pytest.approx(row.latency_ms, rel=1e-5))
        assert _cell(columns["reason"], place) == row.reason
    assert columns["latency_ms"]["unit"] == "ms"
    # A column that holds nothing is left out.
    assert "peak_memory_mib" not in columns
    assert "peak_memory_mib" in {c.key for c in row_columns(made_run(tmp_path, peak_memory_mib=3.0))}
    for figure in figures(run):
        stored = data["figures"][figure.name]
        keys = {column["key"]: column for column in stored["columns"]}
        for place, record in enumerate(figure.records):
            for key, value in record.items():
                expected = pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
                assert _cell(keys[key], place) == expected


def _cell(column: dict[str, Any], place: int) -> Any:
    if "same" in column:
        return column["same"]
    return column["numbers"][place] if "numbers" in column else column["words"][column["codes"][place]]


def test_text_of_a_scenario_cannot_end_the_script(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    run = made_run(
        tmp_path,
        made_scenario(title=evil, description=evil, questions=[Question(metric="speedup", of=evil)]),
        status="failed",
        reason=evil,
    )
    text = report(run)
    assert "alert(1)</script>" not in text
    assert not Outline(text).open


def test_the_page_is_the_same_each_time(real: StudyRun, tmp_path: Path) -> None:
    for name in "ab":
        write_report(real, tmp_path / f"{name}.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_two_thousand_points_stay_small(tmp_path: Path) -> None:
    devices = [Device(device=f"gpu-{number}") for number in range(50)]
    scenario = made_scenario(devices=devices, batch_sizes=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], crossed=["batch"])
    run = made_run(tmp_path, scenario)
    assert len(run.results.rows) == 3000
    # Of the six megabytes one is for the libraries.
    assert len(report(run).encode()) < 5_000_000


def test_a_report_without_rows_or_with_failures_alone(tmp_path: Path) -> None:
    empty = made_run(tmp_path, made_scenario(models=[]))
    assert not Outline(report(empty)).open
    failed = made_run(tmp_path, status="failed", reason="no", latency_ms=None, speedup=None, time_by_kind_us={})
    text = report(failed)
    assert "6 rows: no" in text


@pytest.mark.parametrize("missing", ["altair", "jinja2", "vl_convert"])
def test_what_is_not_installed_is_one_line(tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_run(tmp_path)
    imported = builtins.__import__

    def refuse(name: str, *rest: Any, **others: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == missing:
            raise ImportError(name)
        return imported(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", refuse)
    if missing == "vl_convert":
        monkeypatch.setattr("iossim.study.report.report.libraries", vega.libraries.__wrapped__)
        monkeypatch.setenv("IOSSIM_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(
        OptionError, match=rf"a report needs {missing.replace('_', '-')}.*pip install 'iossim\[report\]'"
    ):
        write_report(run, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_the_libraries_are_kept_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bundler:
        calls = 0

        def javascript_bundle(self, vl_version: str) -> str:
            self.calls += 1
            return f"// Vega-Lite {vl_version}"

    bundler = Bundler()
    monkeypatch.setattr(vega, "need_vl_convert", lambda: bundler)
    monkeypatch.setenv("IOSSIM_CACHE_DIR", str(tmp_path / "new" / "cache"))
    texts = {vega.libraries.__wrapped__() for _ in range(3)}
    assert texts == {f"// Vega-Lite {vega.vega_lite_version()}"}
    assert bundler.calls == 1
    (kept,) = (tmp_path / "new" / "cache").iterdir()
    kept.write_text("// of somebody else")
    kept.parent.chmod(0o777)  # pages would run it
    assert vega.libraries.__wrapped__() in texts
    monkeypatch.setenv("IOSSIM_CACHE_DIR", "/dev/null/no")
    assert vega.libraries.__wrapped__() in texts


@pytest.mark.parametrize(("kind", "magic"), [("svg", b"<svg"), ("png", b"\x89PNG")])
def test_pictures_are_drawn_without_a_browser(tmp_path: Path, kind: Any, magic: bytes) -> None:
    run = made_run(tmp_path, made_scenario(batch_sizes=[1, 32], crossed=["batch"], searches=searches()[:2]))
    drawn = figures(run, ["speedup", "batch_specialisation"] if kind == "svg" else ["pruning"])
    files = picture_files(drawn, kind)
    assert all(re.fullmatch(rf"[a-z_]+(-[\w.=-]+)*\.{kind}", name) for name in files)
    name, write = next(iter(files.items()))
    for place in "ab":
        write(tmp_path / f"{place}-{name}")
    assert (tmp_path / f"a-{name}").read_bytes().startswith(magic)
    assert (tmp_path / f"a-{name}").read_bytes() == (tmp_path / f"b-{name}").read_bytes()


def test_a_picture_has_the_data_of_its_slice_and_a_legend(tmp_path: Path) -> None:
    run = made_run(
        tmp_path, made_scenario(batch_sizes=[1, 8, 32], devices=[Device(device=f"gpu{n}") for n in range(6)])
    )
    (figure,) = figures(run, ["batch"])
    slices = list(figure.slices())
    assert slices == [{"device": f"gpu{n}"} for n in range(6)]
    spec = whole_specification(figure, slices[3])
    legend, pictures = spec["vconcat"]
    assert [entry["label"] for entry in legend["data"]["values"]][:3] == list(SCHEDULERS)
    assert len(pictures["concat"]) == 4
    for view in pictures["concat"]:
        values = view["data"]["values"]
        assert len(values) == 9
        assert {value["device"] for value in values} == {"gpu3"}
    # Shown alone it says what it is of; the finding is of another choice.
    told = whole_specification(replace(figure, setup=", ".join(fixed(run.results.rows))), slices[3], titled=True)
    heading = told["title"]
    assert heading["text"] == figure.title
    assert heading["subtitle"][0].startswith("device gpu3, data type fp32, engine paper, ")
    assert all(len(line) < 120 for line in heading["subtitle"])
    many = made_run(tmp_path, made_scenario(devices=[Device(device=f"gpu{n}") for n in range(40)]))
    (speedup,) = figures(many, ["speedup"])
    assert len(picture_files([speedup], "svg")) == MOST_SLICES
