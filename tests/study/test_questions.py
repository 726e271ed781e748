"""Questions, constraints and claims: their keys, what is refused, and answers against rows whose answers are known."""

import math
import re
from operator import itemgetter
from typing import Any

import pytest
import yaml
from case_files import cases
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from iossim.report.figures.figure import choice_words
from iossim.study.answers import answer
from iossim.study.axes import METRICS, ROW_AXES, Quantity, number
from iossim.study.question import Question, Range, in_words
from iossim.study.scenario import Scenario
from iossim.study.scenario_checks import faults_of
from iossim.study.study_run import Answer, CrossPrice, Row
from iossim.study.table import meets

CASES = cases(__file__, "questions.yaml")
DEVICES = {"p4": (5.4, 75.0), "t4": (8.1, 70.0), "v100-sxm2": (15.7, 300.0)}
SCHEDULERS = ("sequential", "ios-parallel", "ios-both")


def study(**changes: Any) -> Scenario:
    data = {
        "name": "s",
        "models": ["squeezenet"],
        "devices": list(DEVICES),
        "batch_sizes": [1, 8, 32],
        "schedulers": list(SCHEDULERS),
    }
    return Scenario.model_validate({**data, **changes})


def latency_ms(model: str, device: str, batch: int, scheduler: str) -> float:
    work = 40.0 * batch**0.8 * {"squeezenet": 1.0, "resnet18": 2.0}[model]
    return work / DEVICES[device][0] * {"sequential": 1.0, "ios-parallel": 0.81, "ios-both": 0.8}[scheduler]


def rows_of(scenario: Scenario, **changes: Any) -> list[Row]:
    """A row for each point and scheduler, in the order of the points; both schedulers of IOS tie."""
    rows: list[Row] = []
    point = 0
    for model in scenario.models:
        for device in scenario.devices:
            for batch in scenario.batch_sizes:
                for name in scenario.schedulers:
                    took = latency_ms(model.label, device.label, batch, name)
                    peak, power = DEVICES[device.label]
                    facts = {
                        "latency_ms": took,
                        "low_ms": 0.95 * took,
                        "high_ms": 1.05 * took,
                        "throughput_per_s": 1e3 * batch / took,
                        "speedup": latency_ms(model.label, device.label, batch, "sequential") / took,
                        "ties": [] if name == "sequential" else [other for other in SCHEDULERS[1:] if other != name],
                        "stages": {"sequential": 40, "ios-parallel": 24, "ios-both": 20}[name] + batch // 8,
                        "active_warps": {"sequential": 10.0, "ios-parallel": 13.0, "ios-both": 14.0}[name],
                        "peak_tflops": peak,
                        "board_power_w": power,
                        **changes,
                    }
                    rows.append(
                        Row(point=point, model=model.label, device=device.label, batch=batch, dtype="fp32", engine="paper",
                            cost_model="simulator", search="exact", scheduler=name, **facts)
                    )  # fmt: skip
                point += 1
    return rows


def test_numbers_have_three_digits_or_all_before_the_point() -> None:
    expected = ["0.00123", "4.31", "1,000", "1,234", "7"]
    assert [number(each) for each in (0.001234, 4.314, 999.7, 1234.4, 7.0)] == expected


def question(text: str) -> Question:
    return Question.model_validate(yaml.safe_load(text))


def asked(text: str, scenario: Scenario | None = None, cross: list[CrossPrice] | None = None) -> Answer:
    scenario = (scenario or study()).model_copy(update={"questions": [question(text)]})
    (found,) = answer(scenario, rows_of(scenario), cross or [])
    return found


@pytest.mark.parametrize(("text", "expected"), CASES["answers"])
def test_answers_are_sentences_with_figures(text: str, expected: str) -> None:
    found = asked(text)
    assert found.answer == expected
    assert found.holds is None
    assert found.rows


def test_models_are_answered_one_by_one_unless_they_are_asked_for() -> None:
    two = study(models=["squeezenet", "resnet18"], batch_sizes=[1])
    assert asked("{smallest: device, having: {latency_ms: {at_most: 5}}}", two).answer.startswith(
        "squeezenet: t4 (by board power, 70 W), 3.95 ms"
    )
    assert (
        "; resnet18: v100-sxm2 (by board power, 300 W), 4.08 ms"
        in asked("{smallest: device, having: {latency_ms: {at_most: 5}}}", two).answer
    )
    assert asked("{best: model, where: {device: t4}}", two).answer.startswith("squeezenet, 3.95 ms")
    each = asked("{metric: latency_ms, for_each: [device], where: {scheduler: ios-both}}", two).answer
    expected = [f"{model}, {device}" for model in ("squeezenet", "resnet18") for device in DEVICES]
    assert [part.split(":")[0] for part in each.split("; ")] == expected


@pytest.mark.parametrize(("text", "expected", "words"), CASES["claims"])
def test_claims_hold_or_not_and_say_where(text: str, expected: bool, words: str) -> None:
    claims = yaml.safe_load(text if text.startswith("[") else f"[{text}]")
    scenario = study(published=[{"says": "So it is.", "source": "a book, table 1", "claims": claims}])
    (found,) = answer(scenario, rows_of(scenario))
    assert found.answer.startswith(words)
    assert found.holds is expected
    assert (found.question, found.source) == ("So it is.", "a book, table 1")
    assert not list(faults_of(scenario))
    if text.startswith("{"):
        assert asked(text, scenario.model_copy(update={"published": []})).holds is expected


@pytest.mark.parametrize(("text", "is_noise"), CASES["noise"])
def test_what_measuring_might_turn_around_is_no_fact(text: str, is_noise: bool) -> None:
    found = asked(text)
    assert found.holds is True
    assert found.within_noise is is_noise
    assert found.answer.startswith("Within the noise" if is_noise else "Holds")


def test_a_claim_that_holds_for_more_than_noise_somewhere_does_hold() -> None:
    rows = rows_of(study())
    rows = [row.model_copy(update={"ties": []}) if row.device == "p4" else row for row in rows]
    (found,) = answer(study(questions=[{"best": "scheduler", "expect": "ios-both"}]), rows)
    assert (found.holds, found.within_noise) == (True, False)
    assert found.answer == "Holds in all 9 cases; 1.01x of the next best, 6 within the noise."


def test_cases_are_lines_of_a_table() -> None:
    """Each case has all that its part of the sentence says, in columns."""
    found = asked("{best: scheduler, for_each: [device, batch]}")
    assert len(found.cases) == 9
    assert found.cases[0] == {
        "device": "p4",
        "batch": "1",
        "scheduler": "ios-both",
        "latency": "5.93 ms",
        "90% interval": "5.63-6.22 ms",
        "a tie with": "ios-parallel",
        "next": "sequential, 7.41 ms (1.25x)",
    }
    largest = asked("{largest: batch, having: {latency_ms: {at_most: 25}}, for_each: [device]}")
    assert [(case["device"], case["batch"]) for case in largest.cases] == [("p4", "1"), ("t4", "8"), ("v100-sxm2", "8")]
    expected = ["batch 8, 31.3 ms", "batch 32, 63.2 ms", "batch 32, 32.6 ms"]
    assert [case["next larger"] for case in largest.cases] == expected
    missing = asked("{best: scheduler, having: {latency_ms: {below: 10}}, for_each: [batch]}")
    assert len(missing.cases) == 3
    assert missing.cases[2] == {"batch": "32", "answer": "none"}


def test_diagonals_are_held_against_the_schedules_made_beside_them() -> None:
    scenario = study(devices=["t4"])

    def cross(factor: float, tie: bool = False) -> list[CrossPrice]:
        """The schedule of each batch size at each other one; ``factor`` on the one for batch 1 at batch 32."""
        return [
            CrossPrice(axis="batch", scheduler="ios-both", made_for=made, run_at=run,
                       latency_ms=latency_ms("squeezenet", "t4", scenario.batch_sizes[run], "ios-both")
                       * (factor if (made, run) == (0, 2) else 1.1), tie=tie)
            for made in range(3) for run in range(3) if made != run
        ]  # fmt: skip

    text = "{specialised_for: batch}"
    holds = asked(text, scenario, cross(1.05))
    assert (holds.holds, holds.answer) == (
        True, "Holds in all 3 cases; the best of the others takes 1.05 to 1.1x the time.")  # fmt: skip
    fails = asked(text, scenario, cross(0.9))
    assert fails.holds is False
    assert "not with ios-both at batch 32 (the one made for batch 1 is 1.11x as fast)" in fails.answer
    assert asked(text, scenario, cross(0.9, tie=True)).holds is True
    # Beaten by one that does not tie, it fails, whatever ties.
    beaten = [
        price.model_copy(update={"tie": price.made_for == 0, "latency_ms": (0.8 + 0.1 * price.made_for) * own_ms})
        for price in cross(1.0)
        if price.run_at == 2 and (own_ms := latency_ms("squeezenet", "t4", 32, "ios-both"))
    ]
    assert asked(text, scenario, beaten).answer.startswith("Does not hold: with ios-both at batch 32 (")
    assert "within the noise" not in asked(text, scenario, [*beaten, *cross(1.05)[:2]]).answer
    assert asked(text, scenario).holds is None
    assert asked("{specialised_for: batch, where: {scheduler: sequential}}", scenario, cross(0.9)).holds is None


@pytest.mark.parametrize("text", ["{best: scheduler}", "{metric: latency_ms}"])
def test_of_equals_the_scheduler_that_searched_most_is_named(text: str) -> None:
    schedulers = ["ios-both", "sequential", "ios-parallel"]
    scenario = study(devices=["t4"], batch_sizes=[1], schedulers=schedulers, questions=[question(text)])
    (found,) = answer(scenario, rows_of(scenario, latency_ms=1.0))
    assert "ios-both" in found.answer.partition("a tie")[0]
    assert found.rows[0] == 0


def test_figures_of_nothing_are_compared_and_no_ratio_is_told() -> None:
    scenario = study(devices=["t4"], batch_sizes=[1], schedulers=["sequential", "ios-both"])
    merged = {"sequential": 0, "ios-both": 3}
    rows = [
        row.model_copy(update={"merged_stages": merged[row.scheduler]}) for row in rows_of(scenario, latency_ms=1.0)
    ]

    def said(text: str) -> tuple[str, bool | None]:
        (found,) = answer(scenario.model_copy(update={"questions": [question(text)]}), rows)
        return found.answer, found.holds

    assert said("{best: scheduler, expect: sequential, metric: merged_stages}") == ("Holds.", True)
    expected = ("Does not hold: sequential is ahead.", False)
    assert said("{best: scheduler, expect: ios-both, metric: merged_stages}") == expected
    assert said("{metric: merged_stages, aggregate: geomean, below: 1}")[1] is True
    told = "sequential, 0 merged stages; next ios-both, 3 merged stages."
    assert said("{best: scheduler, metric: merged_stages}") == (told, None)


def test_failed_rows_are_left_out() -> None:
    scenario = study(questions=[question("{metric: speedup, at_least: 1.2, where: {scheduler: ios-both}}")])
    first, *rows = rows_of(scenario)
    failed = first.model_copy(update={"status": "failed", "latency_ms": None})
    (found,) = answer(scenario, [failed, *rows])
    assert found.answer == "Holds in all 9 cases; 1.25x. 1 of 27 rows failed and are left out."


def test_no_rows_answer_nothing_and_claims_are_open() -> None:
    scenario = study(
        questions=[
            {"best": "device"},
            {"best": "scheduler", "expect": "ios-both"},
            {"below": 5},
            {"rises_over": "batch"},
            {"of": "t4"},
        ]
    )
    found = answer(scenario, [])
    assert [(each.holds, each.rows) for each in found] == [(None, [])] * 5
    assert all("There are no rows" in each.answer for each in found)


@pytest.mark.parametrize("case", CASES["refused"], ids=itemgetter(0))
def test_what_asks_nothing_is_refused(case: list[str]) -> None:
    text, *words = case
    with pytest.raises(ValidationError) as caught:
        question(text)
    (problem,) = caught.value.errors()
    assert [word for word in words if word not in problem["msg"]] == []


def test_no_phrase_says_a_word_twice_or_a_count_of_itself() -> None:
    usual = {name: axis.usual or 1 for name, axis in ROW_AXES.items()}
    about = {"below": 1, "aggregate": "mean"}
    asked: list[dict[str, Any]] = [{**about, "of": {name: label}, "for_each": [name]} for name, label in usual.items()]
    asked += [{"best": name, "expect": str(label)} for name, label in usual.items()]
    asked += [{"smallest": "batch", "having": {name: {"at_most": 1}}} for name in METRICS]
    asked += [{"metric": name, "per": "peak_memory_mib"} for name in METRICS if name != "peak_memory_mib"]
    said = [in_words(Question.model_validate(each)) for each in asked]
    said += [choice_words(name, label) for name, label in usual.items()]
    assert [words for words in said if re.search(r"\b([a-z]+)s? \1|\ba [aeio]", words)] == []
    assert {
        "The mean of the latency with any workspace is less than 1 ms for each workspace",
        "The mean of the latency with the network as given is less than 1 ms for each network",
        "The batch size of the lowest latency is 1",
        "Which is the smallest batch size with a number of stages of at most 1?",
        "Which is the smallest batch size with an amount of data sent of at most 1 MiB?",
    } < set(said)
    assert (Quantity("stages").amount(1), choice_words("point", "batch 1")) == ("1 stage", "batch 1")


@pytest.mark.parametrize(("text", "words"), CASES["unknown"])
def test_what_a_study_does_not_have_is_refused(text: str, words: str) -> None:
    (fault,) = faults_of(study(questions=[question(text)]))
    assert fault.location == ("questions", 0)
    assert words in fault.reason


def test_a_label_of_two_axes_must_name_one() -> None:
    scenario = study(engines=["paper"], searches=[{"label": "paper"}], questions=[question("{of: paper, below: 1}")])
    (fault,) = faults_of(scenario)
    assert fault.reason == "'paper' is a label of engine and search; write '{engine: paper}'"


def test_a_figure_over_another_is_told_case_by_case() -> None:
    found = asked(
        "{metric: latency_ms, of: sequential, over: ios-both, where: {device: [t4, p4]}}", study(batch_sizes=[1])
    )
    assert (found.question, found.holds) == (
        "What is the latency of sequential, as a multiple of that of ios-both, where the device is t4 or p4?", None)  # fmt: skip
    assert found.answer == "on p4: 1.25x; on t4: 1.25x."
    assert found.cases == [{"device": "p4", "latency": "1.25x"}, {"device": "t4", "latency": "1.25x"}]


@pytest.mark.parametrize(("text", "words"), CASES["words"])
def test_questions_are_told_in_words(text: str, words: str) -> None:
    assert in_words(question(text)) == words


@pytest.mark.parametrize("text", [text for text, *_ in CASES["answers"] + CASES["claims"] if text.startswith("{")])
def test_a_question_is_written_as_it_was_given(text: str) -> None:
    given = question(text)
    assert Question.model_validate(given.model_dump(mode="json")) == given
    assert given.model_dump(mode="json") == yaml.safe_load(text)


@given(
    st.floats(0.1, 100),
    st.sampled_from(["at_least", "at_most", "above", "below", "equals"]),
    st.sampled_from(["latency_ms", "speedup", "throughput_per_s"]),
)
@example(64.0, "at_most", "latency_ms")
def test_bounds_mean_what_they_say(bound: float, name: str, column: str) -> None:
    scenario = study()
    rows = rows_of(scenario)
    for row in rows:
        value = getattr(row, column)
        if math.isclose(value, bound, rel_tol=1e-8):  # equal, but for rounding: 64 ms comes out as a little more
            value = bound
        expected = {
            "below": value < bound, "at_most": value <= bound, "above": value > bound, "at_least": value >= bound,
            "equals": value == bound,
        }[name]  # fmt: skip
        assert meets(Range.model_validate({name: bound}), getattr(row, column)) is expected
