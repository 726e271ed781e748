"""Networks measured as a whole beside their predictions, as a table and in words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.table import Table

from iossim.base.tables import Cell, Column, records_table
from iossim.calibration.validation.measured_networks import MeasuredEvaluation, MeasuredLatency


def measured_networks_table(evaluation: MeasuredEvaluation) -> Table:
    """Runs under their network and engine; baselines have no prediction."""
    columns = [
        Column("network", wraps=True),
        Column("predicted_ms", digits=3),
        Column("low_ms", digits=3),
        Column("high_ms", digits=3),
        Column("measured_ms", digits=3),
        Column("error_percent", digits=1),
        Column("gain_x", "gain"),
        Column("measured_gain_x", "measured"),
    ]
    rows: list[dict[str, Cell]] = []
    for (model, batch, engine, backend), own in groupby(evaluation.latencies, key=_group):
        by = ", ".join(filter(None, [f"{model}, batch {batch}", f"{engine} engine" if engine else "", backend]))
        rows.append({"network": by})
        rows += [_row(each) for each in own]
    return records_table("", rows, columns)


def measured_networks_summary(evaluation: MeasuredEvaluation) -> Iterator[str]:
    """Errors over all runs that have a prediction, and how many lie in their intervals."""
    accuracy = evaluation.accuracy
    predicted = [each for each in evaluation.latencies if each.error is not None]
    if accuracy.mean_error is None or accuracy.bias is None:
        yield "no run of a schedule could be predicted"
        return
    inside = sum(each.is_covered is True for each in predicted)
    yield (
        f"error: mean {100 * accuracy.mean_error:.1f}%, bias {100 * accuracy.bias:+.1f}%; {inside} of {len(predicted)} "
        "latencies in their intervals"
    )


def _group(each: MeasuredLatency) -> tuple[str, int, str, str]:
    run = each.run
    return run.model, run.batch, run.engine, run.backend


def _row(each: MeasuredLatency) -> dict[str, Cell]:
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
