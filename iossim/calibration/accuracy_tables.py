"""Prediction errors as tables: of operators, of stages, and of networks measured as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from iossim.base.tables import Cell, Column, records_table
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
    """Operators of all data sets, held-out rows."""
    if not operators:
        return
    compared = "; roof: mean error of a calibrated roofline" if _has_baseline(operators) else ""
    yield from titled(
        "operators: errors of device time on held-out shapes, %",
        operators_table(operators),
        "within: % of measured times inside the 90% interval of their prediction; wide: its median high / low"
        + compared,
        *_clamped(operators),
    )


def stages_part(stages: Sequence[StageEvaluation]) -> Iterator[RenderableType]:
    """Measured stages of several groups, as a table."""
    if stages:
        yield from titled(
            "measured stages of concurrent groups: errors, %",
            stages_table(stages),
            "gain: time on one stream over time of the stage",
        )


def measured_part(networks: Sequence[MeasuredEvaluation]) -> Iterator[RenderableType]:
    """Networks measured as a whole, one table per file."""
    for measured in networks:
        yield from titled(
            f"networks measured on {measured.device} ({measured.source})",
            measured_networks_table(measured),
            *measured_networks_summary(measured),
        )


def _has_baseline(operators: Sequence[OperatorEvaluation]) -> bool:
    return any(np.isfinite(each.baseline_us).any() for each in operators)


def operators_table(evaluations: Sequence[OperatorEvaluation]) -> Table:
    """Held-out rows, one line per kind of each data set under its device; errors in percent."""
    columns = [
        Column("op", shortens=True),
        Column("rows"),
        Column("held", "held\nout"),
        Column("mape", "mean", digits=1),
        *(Column(name, digits=1) for name in ("median", "bias")),
        Column("tau"),
        Column("small", "<0.2\nms", digits=1),
        Column("middle", "0.2-1\nms", digits=1),
        Column("large", ">1\nms", digits=1),
        Column("inside", "within", digits=0),
        Column("wide"),
    ]
    columns += [Column("roof", digits=1)] if _has_baseline(evaluations) else []
    rows: list[dict[str, Cell]] = []
    for device, own in groupby(evaluations, key=lambda each: each.device):
        several = list(own)
        rows.append({"op": device})
        rows += [_operators_row(each) for each in several if len(each) >= FEWEST_SHOWN]
        few = few_rows((len(each), each.unseen.errors) for each in several if len(each.unseen))
        rows += [{"op": line["op"], "held": line["rows"], "mape": line["mean"]} for line in few]
    return records_table("", rows, columns)


def _operators_row(each: OperatorEvaluation) -> dict[str, Cell]:
    unseen = each.unseen
    gpu = unseen.gpu_time()
    small, middle, large = unseen.by_bucket().values()
    ((kind, precision),) = each.kinds
    return {
        "op": f"  {shown(key_of(kind, precision), each.data_set)}",
        "rows": len(each),
        "held": len(unseen),
        "mape": percent(gpu.mean_error),
        "median": percent(gpu.median_error),
        "bias": percent(gpu.bias),
        "tau": gpu.kendall_tau,
        "small": mean(small),
        "middle": mean(middle),
        "large": mean(large),
        "inside": percent(unseen.coverage()),
        "wide": unseen.width(),
        "roof": mean(unseen.baseline()),
    }


def _clamped(evaluations: Sequence[OperatorEvaluation]) -> Iterator[str]:
    counts = {each.data_set: int(each.clamped.sum()) for each in evaluations if each.clamped.any()}
    if counts:
        of = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        yield f"rows with less device time than their recording can resolve, counted as the least that it can: {of}"


def stages_table(evaluations: Sequence[StageEvaluation]) -> Table:
    """Stages of several groups, one line per data set; errors in percent."""
    columns = [
        Column("data set", shortens=True),
        Column("stages"),
        *(Column(name, digits=1) for name in ("mean", "median", "bias")),
        Column("tau"),
        Column("gain", "mean\nof gain", digits=1),
        Column("gain_bias", "bias\nof gain", digits=1),
    ]
    rows: list[dict[str, Cell]] = []
    for device, own in groupby(evaluations, key=lambda each: each.device):
        rows.append({"data set": device})
        for each in own:
            latency, gain = each.concurrent.latency(), each.concurrent.gain()
            row: dict[str, Cell] = {
                "data set": f"  {each.data_set}",
                "stages": len(each.concurrent),
                "mean": percent(latency.mean_error),
                "median": percent(latency.median_error),
                "bias": percent(latency.bias),
                "tau": latency.kendall_tau,
                "gain": percent(gain.mean_error),
                "gain_bias": percent(gain.bias),
            }
            rows.append(row)
    return records_table("", rows, columns)


def titled(title: str, table: Table, *lines: str) -> Iterator[RenderableType]:
    """A table under its title, followed by lines of text."""
    # This is not the table's own title, which would wrap at the table's width.
    yield Text(title, style="bold")
    yield table
    yield from (Text(line, style="dim") for line in lines)
    yield Text("")


def few_rows(kinds: Iterable[tuple[int, np.ndarray]]) -> list[dict[str, Cell]]:
    """One line for kinds with too few rows: their number, and the mean of all their errors."""
    few = [errors for count, errors in kinds if 0 < count < FEWEST_SHOWN]
    if not few:
        return []
    joined = np.concatenate(few)
    name = f"  {len(few)} of few rows" if len(few) > 1 else "  one of few rows"
    return [{"op": name, "rows": len(joined), "mean": 100 * float(np.abs(joined).mean())}]


def shown(kind: str, data_set: str) -> str:
    """Displayed kind; a table named for another spelling of it (conv2d) uses that spelling."""
    name = data_set.partition(".")[0]
    return name if ALIASES.get(name) == kind else kind


def mean(accuracy: Accuracy) -> float | None:
    """Mean error in percent."""
    return percent(accuracy.mean_error)


def percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def measured_networks_table(evaluation: MeasuredEvaluation) -> Table:
    """Runs by network and engine; baselines have no prediction."""
    columns = [
        Column("network", wraps=True),
        *(Column(f"{name}_ms", digits=3) for name in ("predicted", "low", "high", "measured")),
        Column("error_percent", digits=1),
        Column("gain_x", "gain"),
        Column("measured_gain_x", "measured"),
    ]
    rows: list[dict[str, Cell]] = []
    group_of = attrgetter("run.model", "run.batch", "run.engine", "run.backend")
    for (model, batch, engine, backend), own in groupby(evaluation.latencies, key=group_of):
        by = ", ".join(filter(None, [f"{model}, batch {batch}", f"{engine} engine" if engine else "", backend]))
        rows.append({"network": by})
        rows += [_measured_row(each) for each in own]
    return records_table("", rows, columns)


def measured_networks_summary(evaluation: MeasuredEvaluation) -> Iterator[str]:
    """Errors over all runs that have a prediction, and how many are within their intervals."""
    accuracy = evaluation.accuracy
    if accuracy.mean_error is None or accuracy.bias is None:
        yield "no run of a schedule could be predicted"
        return
    covered = [each.is_covered is True for each in evaluation.latencies if each.error is not None]
    errors = f"error: mean {100 * accuracy.mean_error:.1f}%, bias {100 * accuracy.bias:+.1f}%"
    yield f"{errors}; {sum(covered)} of {len(covered)} latencies in their intervals"


def _measured_row(each: MeasuredLatency) -> dict[str, Cell]:
    return {
        "network": f"  {each.run.name}",
        "predicted_ms": _ms(each.predicted_us),
        "low_ms": _ms(each.low_us),
        "high_ms": _ms(each.high_us),
        "measured_ms": _ms(each.run.median_us),
        "error_percent": None if each.error is None else 100 * each.error,
        "gain_x": each.speedup,
        "measured_gain_x": each.measured_speedup,
    }


def _ms(time_us: float | None) -> float | None:
    return None if time_us is None else time_us / 1e3
