"""Changes from one run of a study to another, and whether they exceed the noise.

Rows correspond if all their labels are equal. A latency has changed beyond the noise if it is outside the other's
interval, on either side: then the two predictions contradict each other. Where prices predict no device, every change
counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from iossim.prediction.schedule_interval import REPEAT_NOISE
from iossim.study.axes import ROW_AXES, name_of
from iossim.study.study_run import Answer, Results, Row

#: Such values are equal up to rounding of sums of floats.
_ROUNDING = 1e-9
#: The labels of a row.
Labels = tuple[str, ...]
Weight = Literal["rounding", "noise", "beyond"]


@dataclass(frozen=True)
class RowChange:
    """A row of both runs whose latency, stages or status differ. ``weight`` is the distance of its latencies."""

    row: Labels
    before_ms: float | None
    after_ms: float | None
    before_stages: int | None
    after_stages: int | None
    weight: Weight
    #: Reason why it fails now, or failed before.
    reason: str = ""

    def __str__(self) -> str:
        name = _name(self.row)
        if self.before_ms is None or self.after_ms is None:
            return f"{name}: {'failed before' if self.before_ms is None else 'fails now'}: {self.reason}"
        more = 100 * (self.after_ms / self.before_ms - 1) if self.before_ms else 0.0
        stages = f", {self.before_stages} -> {self.after_stages} stages"
        words = f"{name}: {self.before_ms:.3f} -> {self.after_ms:.3f} ms ({more:+.1f}%)"
        return words + (stages if self.before_stages != self.after_stages else "")


@dataclass(frozen=True)
class AnswerChange:
    """A question whose answer reads differently; None where a run does not ask it."""

    question: str
    before: str | None
    after: str | None
    #: Whether the verdict on a claim was reversed.
    is_verdict: bool


@dataclass(frozen=True)
class RunDiff:
    """All differences from run ``a`` to run ``b``."""

    a: str
    b: str
    same: int
    new: tuple[Labels, ...]
    gone: tuple[Labels, ...]
    changes: tuple[RowChange, ...]
    #: Prices across points in both runs, and how many of them differ by more than two measurements of the same do.
    crossed: int
    crossed_changes: int
    answers: tuple[AnswerChange, ...]

    @property
    def is_beyond_noise(self) -> bool:
        beyond = any(change.weight == "beyond" for change in self.changes)
        verdicts = any(change.is_verdict for change in self.answers)
        return bool(self.new or self.gone or self.crossed_changes or beyond or verdicts)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "beyond_noise": self.is_beyond_noise}

    def lines(self) -> list[str]:
        """The differences in words: those beyond the noise first."""
        told = [f"{self.same} rows are the same" + ("" if self.a == self.b else f" (of {self.a!r} and {self.b!r})")]
        told += [f"{what}: {_name(row)}" for what, rows in (("new", self.new), ("gone", self.gone)) for row in rows]
        for change in sorted(self.changes, key=lambda change: change.weight != "beyond"):
            told.append(f"changed {'beyond' if change.weight == 'beyond' else 'within'} the noise: {change}")
        if self.crossed_changes:
            changed = f"{self.crossed_changes} changed by more than {100 * REPEAT_NOISE:g}%"
            told.append(f"of {self.crossed} prices across points {changed}")
        for one in self.answers:
            told.append(f"{'verdict' if one.is_verdict else 'answer'} changed: {one.question}")
            told += [f"  {sign} {text}" for sign, text in (("-", one.before), ("+", one.after)) if text]
        return told if self.is_beyond_noise else [*told, "nothing changed beyond the noise"]


def compare_runs(a: Results, b: Results) -> RunDiff:
    """Compare run ``a`` with run ``b``."""
    before, after = ({_labels(row): row for row in run.rows} for run in (a, b))
    both = [labels for labels in before if labels in after]
    changes = [found for labels in both if (found := _changed(labels, before[labels], after[labels]))]
    old, new = _crossed(a), _crossed(b)
    shared = [key for key in old if key in new]
    return RunDiff(
        a.scenario.name,
        b.scenario.name,
        len(both) - len(changes),
        tuple(labels for labels in after if labels not in before),
        tuple(labels for labels in before if labels not in after),
        tuple(changes),
        len(shared),
        sum(_differs(old[key], new[key], REPEAT_NOISE) for key in shared),
        tuple(_answers(a.answers, b.answers)),
    )


def _labels(row: Row) -> Labels:
    return tuple(str(getattr(row, axis)) for axis in ROW_AXES)


def _crossed(run: Results) -> dict[tuple[str, str, Labels, Labels], float | None]:
    """Prices across points by axis, scheduler, and the labels of both points."""
    points = {row.point: _labels(row)[:-1] for row in run.rows}
    return {
        (price.axis, price.scheduler, points[price.made_for], points[price.run_at]): price.latency_ms
        for price in run.cross
    }


def _changed(labels: Labels, before: Row, after: Row) -> RowChange | None:
    old, new = before.latency_ms, after.latency_ms
    weight: Weight = "rounding"
    if _differs(old, new, _ROUNDING):
        is_noise = old is not None and new is not None and _expects(before, new) and _expects(after, old)
        weight = "noise" if is_noise else "beyond"
    elif before.stages == after.stages:
        return None
    return RowChange(labels, old, new, before.stages, after.stages, weight, after.reason or before.reason)


def _differs(before: float | None, after: float | None, most: float) -> bool:
    """Whether two latencies differ by more than a fraction of the larger."""
    if before is None or after is None:
        return before != after
    return abs(before - after) > most * max(before, after)


def _expects(row: Row, latency_ms: float) -> bool:
    return row.low_ms is not None and row.high_ms is not None and row.low_ms <= latency_ms <= row.high_ms


def _answers(before: Sequence[Answer], after: Sequence[Answer]) -> Iterator[AnswerChange]:
    old, new = ({answer.question: answer for answer in answers} for answers in (before, after))
    for question in dict.fromkeys([*old, *new]):
        was, now = old.get(question), new.get(question)
        if was and now and (was.answer, was.holds) == (now.answer, now.holds):
            continue
        is_verdict = was is not None and now is not None and was.holds != now.holds
        yield AnswerChange(question, was.answer if was else None, now.answer if now else None, is_verdict)


def _name(row: Labels) -> str:
    """Labels of a row, without usual ones."""
    labels = dict(zip(ROW_AXES, row, strict=True))
    return ", ".join(name_of(axis, label) for axis, label in labels.items() if label != str(ROW_AXES[axis].usual))
