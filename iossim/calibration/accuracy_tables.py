"""Prediction errors as tables: of operators, of stages, and of networks measured as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from iossim.base.tables import Cell, described_table
from iossim.calibration.accuracy import Accuracy
from iossim.calibration.evaluated_networks import MeasuredEvaluation, MeasuredLatency
from iossim.calibration.validation import OperatorEvaluation, StageEvaluation, Validation
from iossim.measurements.operator_kinds import ALIASES
from iossim.prediction.bands import key_of

#: Kinds of a data set with fewer rows than this share one line.
FEWEST_SHOWN = 20


def accuracy_tables(found: Validation) -> RenderableType:
    """All tables of a validation, each with a line that says what its figures cover."""
    notes = (Text(f"note: {note}", style="dim") for note in found.notes)
    parts = (operators_part(found.operators), stages_part(found.stages), measured_part(found.measured), notes)
    return Group(*chain(*parts))


def operators_part(operators: Sequence[OperatorEvaluation]) -> Iterator[RenderableType]:
    """Operators of all data sets, held-out rows: a line for each kind of each data set under its device."""
    rows: list[dict[str, Cell]] = []
    for device, own in groupby(operators, key=attrgetter("device")):
        several = list(own)
        rows.append({"op": device})
        rows += [_operators_row(each) for each in several if len(each) >= FEWEST_SHOWN]
        rows += few_rows(((len(each), each.unseen.errors) for each in several if len(each.unseen)), "held")
    has_baseline = any(row.get("roof") is not None for row in rows)
    return titled(
        __package__,
        "operators",
        "operators: errors of device time on held-out shapes, %",
        rows,
        "within: % of measured times inside the 90% interval of their prediction; wide: its median high / low"
        + ("; roof: mean error of a calibrated roofline" if has_baseline else ""),
        *_clamped(operators),
    )


def _operators_row(each: OperatorEvaluation) -> dict[str, Cell]:
    unseen = each.unseen
    gpu = unseen.gpu_time()
    ((kind, precision),) = each.kinds
    return {
        "op": f"  {shown(key_of(kind, precision), each.data_set)}",
        "rows": len(each),
        "held": len(unseen),
        **errors(gpu),
        "tau": gpu.kendall_tau,
        **dict(zip(("small", "middle", "large"), map(mean, unseen.by_bucket().values()), strict=True)),
        "inside": percent(unseen.coverage()),
        "wide": unseen.width(),
        "roof": mean(unseen.baseline()),
    }


def _clamped(evaluations: Sequence[OperatorEvaluation]) -> Iterator[str]:
    counts = {each.data_set: int(each.clamped.sum()) for each in evaluations if each.clamped.any()}
    if counts:
        of = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        yield f"rows with less device time than their recording can resolve, counted as the least that it can: {of}"


def stages_part(stages: Sequence[StageEvaluation]) -> Iterator[RenderableType]:
    """Measured stages of several groups, a line for each data set under its device."""
    rows: list[dict[str, Cell]] = []
    for device, own in groupby(stages, key=attrgetter("device")):
        rows.append({"data set": device})
        for each in own:
            concurrent = each.concurrent
            latency, gain = concurrent.latency(), concurrent.gain()
            line = {"data set": f"  {each.data_set}", "stages": len(concurrent), **errors(latency)}
            rows.append(line | {"tau": latency.kendall_tau, "gain": mean(gain), "gain_bias": percent(gain.bias)})
    return titled(
        __package__,
        "stages",
        "measured stages of concurrent groups: errors, %",
        rows,
        "gain: time on one stream over time of the stage",
    )


def measured_part(networks: Sequence[MeasuredEvaluation]) -> Iterator[RenderableType]:
    """Networks measured as a whole, one table per file: runs by network and engine; baselines have no prediction."""
    group_of = attrgetter("run.model", "run.batch", "run.engine", "run.backend")
    for measured in networks:
        rows: list[dict[str, Cell]] = []
        for (model, batch, engine, backend), own in groupby(measured.latencies, key=group_of):
            by = ", ".join(filter(None, [f"{model}, batch {batch}", f"{engine} engine" if engine else "", backend]))
            rows += [{"network": by}, *map(_measured_row, own)]
        title = f"networks measured on {measured.device} ({measured.source})"
        yield from titled(__package__, "measured", title, rows, measured_networks_summary(measured))


def titled(
    package: str, name: str, title: str, rows: Sequence[Mapping[str, Cell]], *lines: str
) -> Iterator[RenderableType]:
    """A table that a package describes under a name, its title above and lines of text below; nothing without rows."""
    if not rows:
        return
    # This is not the table's own title, which would wrap at the table's width.
    yield Text(title, style="bold")
    yield described_table(package, name, "", rows)
    yield from (Text(line, style="dim") for line in lines)
    yield Text("")


def errors(accuracy: Accuracy) -> dict[str, Cell]:
    """Mean and median size of errors, and their mean, in percent."""
    found = {"mean": accuracy.mean_error, "median": accuracy.median_error, "bias": accuracy.bias}
    return {name: percent(value) for name, value in found.items()}


def few_rows(kinds: Iterable[tuple[int, np.ndarray]], counted: str = "rows") -> list[dict[str, Cell]]:
    """One line for kinds with too few rows: their number, as ``counted``, and the mean of all their errors."""
    few = [errors for count, errors in kinds if 0 < count < FEWEST_SHOWN]
    if not few:
        return []
    joined = np.concatenate(few)
    name = f"  {len(few)} of few rows" if len(few) > 1 else "  one of few rows"
    return [{"op": name, counted: len(joined), "mean": 100 * float(np.abs(joined).mean())}]


def shown(kind: str, data_set: str) -> str:
    """Displayed kind; a table named for another spelling of it (conv2d) uses that spelling."""
    name = data_set.partition(".")[0]
    return name if ALIASES.get(name) == kind else kind


def mean(accuracy: Accuracy) -> float | None:
    """Mean error in percent."""
    return percent(accuracy.mean_error)


def percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def measured_networks_summary(evaluation: MeasuredEvaluation) -> str:
    """Errors over all runs that have a prediction, and how many are within their intervals."""
    accuracy = evaluation.accuracy
    if accuracy.mean_error is None or accuracy.bias is None:
        return "no run of a schedule could be predicted"
    covered = [each.is_covered is True for each in evaluation.latencies if each.error is not None]
    errors = f"error: mean {100 * accuracy.mean_error:.1f}%, bias {100 * accuracy.bias:+.1f}%"
    return f"{errors}; {sum(covered)} of {len(covered)} latencies in their intervals"


def _measured_row(each: MeasuredLatency) -> dict[str, Cell]:
    times_us = {
        "predicted": each.predicted_us,
        "low": each.low_us,
        "high": each.high_us,
        "measured": each.run.median_us,
    }
    return {
        "network": f"  {each.run.name}",
        **{f"{name}_ms": None if us is None else us / 1e3 for name, us in times_us.items()},
        "error_percent": percent(each.error),
        "gain_x": each.speedup,
        "measured_gain_x": each.measured_speedup,
    }
