"""Figures in documents are those that are kept, and those that are kept are what the commands find.

Machine times are not found again: the search's column of the first example, the first command, and the time to plan. Of the measured
searches, which take a quarter of an hour, SqueezeNet's are made.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

import iossim
from evidence.commands.figures import FOLDER
from evidence.measured_search import BARS, BUDGETS, DEVICE, OPTIONS, problems_of
from evidence.quoted import sections
from evidence.quoted.blocks import FiguresError, blocks, documents, filled, read_results
from evidence.quoted.sections import BOARDS, SECTIONS, compute, measured_search_of
from evidence.quoted.texts import TEXTS
from evidence.validation.report import ValidationReport, validate
from iossim.cli.main import main
from iossim.prediction.bands import unmeasured
from iossim.schedule.masks import stage_hashes, unit_keys
from iossim.search.measured.space import build_space
from iossim.search.scheduler import scheduler_names

#: Of a percentage of a fit done anew, in points. Where least squares end depends on how linear algebra rounds, and that on the
#: processor, the number of threads and where arrays lie: differences up to 1.0 were seen.
ROUNDING = 2.0
#: Of the stages of Inception on streams: at most this median difference of the engines, this 95th percentile, and this
#: difference of one's best schedule from the other's, in %.
AGREEMENT = {"v100-sxm2": (1, 5, 2), "a100-sxm-40gb": (1, 7, 2), "t4": (2, 11, 3)}


def test_pictures_of_how_it_works_are_those_drawn_and_say_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    monkeypatch.setattr("evidence.commands.figures.FOLDER", tmp_path)
    assert main(["pictures"], commands="evidence.commands") == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == kept
    page = FOLDER.with_suffix(".md").read_text(encoding="utf-8")
    home = (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"how_it_works/(\w+\.svg)\)", page + home)) == kept.keys()
    texts = "\n".join(re.findall(r"<text[^>]*>([^<]*)<", "".join(kept.values())))
    quoted = set(re.findall(r"\d+\.\d|\d+ s[a-z]+", page))
    assert len(quoted) >= 10
    assert [words for words in quoted if words not in texts] == []


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_documents_say_what_is_kept(document: Path) -> None:
    results = read_results()
    stale = [name for name, text in blocks(document) if text != TEXTS[name](results)]
    assert stale == [], "run: python -m evidence figures"


def test_every_block_is_quoted_and_every_section_is_kept() -> None:
    assert {name for document in documents() for name, _ in blocks(document)} == TEXTS.keys()
    assert read_results().keys() == SECTIONS.keys()


def test_markers_are_paired() -> None:
    for document in documents():
        text = document.read_text(encoding="utf-8")
        marks = re.findall(r"^<!-- (figures|end of figures)\b", text, re.MULTILINE)
        assert marks == ["figures", "end of figures"] * len(list(blocks(document)))


def test_only_what_stands_between_markers_is_written() -> None:
    text = "before 1\n\n<!-- figures: gain -->\n\nstale\n\n<!-- end of figures -->\n\nafter 2\n"
    made = filled(text, {"gain": 1.5}, {"gain": lambda results: f"| {results['gain']} |\n|---|"})
    assert made == text.replace("stale", "| 1.5 |\n|---|")
    assert filled(made, {"gain": 1.5}, {"gain": lambda results: f"| {results['gain']} |\n|---|"}) == made
    with pytest.raises(FiguresError, match="no figures are called 'gain'"):
        filled(text, {}, {"gains": str})
    # An empty block ends where it ends.
    made = filled(text.replace("stale\n\n", "") + text, {}, {"gain": lambda _: "new"})
    assert [made.count(word) for word in ("new", "stale", "after 2")] == [2, 0, 2]


def test_a_section_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "network"], commands="evidence.commands") == 2
    assert "no section of figures is called 'network'" in capsys.readouterr().err


def differences(kept: Any, made: Any, within: float = 0.0, place: str = "") -> Iterator[str]:
    """A line for each figure that is not as it is kept; the sixth digit may hang on a machine's rounding."""
    if isinstance(kept, Mapping) and isinstance(made, Mapping) and kept.keys() == made.keys():
        for key, value in kept.items():
            yield from differences(value, made[key], within, f"{place}/{key}")
    elif isinstance(kept, list) and isinstance(made, list) and len(kept) == len(made):
        for index, value in enumerate(kept):
            yield from differences(value, made[index], within, f"{place}/{index}")
    elif isinstance(kept, float | int) and isinstance(made, float | int):
        if abs(kept - made) > max(within, 1e-4 * abs(kept), 1e-9):
            yield f"{place}: {kept} is kept, {made} was made"
    elif kept != made:
        yield f"{place}: {kept!r} is kept, {made!r} was made"


def test_a_figure_that_is_wrong_is_found() -> None:
    assert list(differences({"a": [1.0, "x"]}, {"a": [1.0, "x"]})) == []
    assert list(differences({"a": [1.0, "x"]}, {"a": [1.1, "x"]})) == ["/a/0: 1.0 is kept, 1.1 was made"]
    assert list(differences({"a": 9.5}, {"a": 9.9}, within=0.5)) == []
    assert list(differences({"a": 9.5}, {"b": 9.5})) != []


def test_few_measurements_find_nearly_the_best_of_every_network() -> None:
    kept = read_results()["measured-search"]["networks"]
    assert {model: {error: row["measured"] for error, row in rows.items()} for model, rows in kept.items()} == BUDGETS
    assert all(row["regret"] <= BARS[error] for rows in kept.values() for error, row in rows.items())


def untimed(lines: list[str]) -> list[list[str]]:
    """The words of each line, without the search's time in the row of a scheduler."""
    words = [line.split() for line in lines]
    return [line[:5] + line[6:] if line and line[0].rstrip("≈") in scheduler_names() else line for line in words]


@pytest.mark.slow
def test_the_first_example() -> None:
    assert untimed(compute("first-example")) == untimed(read_results()["first-example"])


@pytest.mark.slow
@pytest.mark.parametrize("section", ["studies", "networks", "graph-kernels"])
def test_sections_are_found_again(section: str, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSSIM_SHARED", str(shared))
    assert list(differences(read_results()[section], compute(section))) == []


@pytest.mark.slow
def test_the_other_engine() -> None:
    found = compute("engines")
    assert found.keys() == AGREEMENT.keys()
    for name, (median, high, optimum) in AGREEMENT.items():
        assert found[name]["median_difference"] <= median
        assert found[name]["percentile_95_difference"] <= high
        assert max(found[name]["analytic_optimum_by_events"], found[name]["events_optimum_by_analytic"]) <= optimum
    assert list(differences(read_results()["engines"], found)) == []


@pytest.mark.slow
def test_operators_on_seen_and_on_unseen_devices(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recordings are read and lowered once for both sections."""
    monkeypatch.setenv("IOSSIM_SHARED", str(shared))
    splits: list[str] = []
    report: list[ValidationReport] = []

    def both(profiles: None, places: list[Path], parts: list[str], **options: Any) -> ValidationReport:
        splits.extend(options["splits"])
        if not report:
            report.append(validate(profiles, places, parts, splits=["hash", "device"]))
        return report[0]

    monkeypatch.setattr(sections, "validate", both)
    assert list(differences(read_results()["operators"], compute("operators"))) == []
    assert [note for note in report[0].notes if "quotes an error" in note] == []  # of a profile that ships
    found = compute("transfer")
    assert splits == ["hash", "device"]
    zero_shot, refined = (list(found["all_convolutions"][way].values()) for way in ("zero_shot", "refined"))
    assert len(zero_shot) == len(refined) == len(BOARDS)
    assert fmean(zero_shot) <= 14
    assert max(zero_shot) <= 20
    assert fmean(refined) <= 11
    assert list(differences(read_results()["transfer"]["errors"], found["errors"], ROUNDING)) == []


def test_bands_of_what_was_not_measured_are_those_that_were_refitted() -> None:
    kept = read_results()["intervals"]["factors"]
    for name in ("new_chip", "stored_otherwise"):
        assert unmeasured()[name] == kept[name]["factor"]
    for name in ("tensor_cores", "new_tensor_cores"):
        found = {family: list(kept[f"{name}, {family}"].values()) for family in unmeasured()[name]}
        assert unmeasured()[name] == found


@pytest.mark.slow
def test_intervals_hold_what_the_page_says(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSSIM_SHARED", str(shared))
    kept, found = read_results()["intervals"], compute("intervals")
    assert list(differences(kept["order"], found["order"])) == []
    assert list(differences(kept["factors"], found["factors"], 0.051)) == []
    assert kept["inside"].keys() == found["inside"].keys()
    for name, row in kept["inside"].items():
        for figure, value in row.items():
            within = 0.06 * value if "the chip" in name else 0.0  # rounding moves fits: one of 42 rows is 2.4%
            assert list(differences(value, found["inside"][name][figure], within, f"{name}/{figure}")) == []


@pytest.mark.slow
def test_how_much_need_be_measured(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSSIM_SHARED", str(shared))
    kept = read_results()["measured-search"]["networks"]["squeezenet"]
    made = measured_search_of("squeezenet")
    for each in made.values():
        each.pop("planning_cpu_s")
    assert list(differences(kept, made)) == []


@pytest.mark.parametrize("model", ["inception_v3", "randwire", "nasnet_a"])
def test_stages_of_equal_keys_cost_the_same_and_those_of_equal_work_do_not(
    model: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, if the host issues their groups in one order. The page says how many stages differ in their work."""
    monkeypatch.setenv("IOSSIM_SHARED", str(shared))
    prices, truth = iossim.cost_model("simulator", DEVICE), iossim.cost_model("perturbed:0.1", DEVICE)
    batches = [space.batch() for space in build_space(problems_of(model), prices, truth, OPTIONS).transitions]
    costs_us = np.concatenate([prices.price_stages(batch) for batch in batches])
    spread, stages = {}, {}
    for told, keys in {"keys": prices.price_keys, "works": lambda problem: problem.works}.items():
        named = [(each, unit_keys(keys(each.problem))) for each in batches]
        in_order = np.concatenate([stage_hashes(each, own, ordered=True) for each, own in named])
        stages[told] = np.unique(np.concatenate([stage_hashes(each, own) for each, own in named])).size
        _, first, equal = np.unique(in_order, return_index=True, return_inverse=True)
        spread[told] = np.nanmax(np.abs(costs_us / costs_us[first][equal] - 1))
    assert spread["keys"] == 0
    assert spread["works"] > (0 if model == "inception_v3" else 0.05)  # so works alone are too coarse a key
    assert stages["keys"] == read_results()["measured-search"]["networks"][model]["0.1"]["stages"]
    page = (FOLDER.parents[1] / "docs/results/hardware.md").read_text(encoding="utf-8")
    assert f"{stages['works']:,}" in page.partition("## How many measurements?")[2].partition("\n## ")[0]
