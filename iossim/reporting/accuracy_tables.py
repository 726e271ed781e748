"""How wrong predictions are, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import fmean

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from iossim.calibration.leave_one_out import SAMPLED_KIND, LeaveOneOut
from iossim.measurements.operator_kinds import ALIASES
from iossim.prediction.accuracy import Accuracy
from iossim.prediction.bands import key_of
from iossim.reporting.measured_networks_table import measured_networks_summary, measured_networks_table
from iossim.tables import Cell, Column, records_table
from iossim.validation.engines import EngineAgreement
from iossim.validation.networks import NetworkEvaluation, largest, mean_size
from iossim.validation.operators import OperatorEvaluation
from iossim.validation.report import ValidationReport, sampled_rows
from iossim.validation.stages import StageEvaluation


def accuracy_tables(report: ValidationReport) -> RenderableType:
    """All tables of a report, each with a line that says what its figures are of."""
    parts: list[RenderableType] = []
    if report.operators:
        parts += _titled(
            "operators: errors of device time on the shapes that no fit sees, %",
            operators_table(report.operators),
            "total: with the host's overhead; inside: measured times in the interval of their prediction; roof: mean error of a calibrated roofline",
            *_clamped(report.operators),
        )
    if report.stages:
        parts += _titled(
            "measured stages of several groups: errors, %",
            stages_table(report.stages),
            "gain: what running side by side is worth, the time in one stream over that of the stage",
        )
    for networks in report.networks:
        parts += _networks(networks)
    for measured in report.measured:
        parts += _titled(
            f"networks measured on {measured.device} ({measured.source})",
            _without_wrapped_numbers(measured_networks_table(measured)),
            *measured_networks_summary(measured),
        )
    if report.engines:
        parts += _titled(
            f"event-driven engine against analytic prices: stages of {report.engines[0].network}, %",
            engines_table(report.engines),
            "differences of stage prices, and how much slower the best schedule by one is at the prices of the other",
        )
    if report.transfer is not None:
        parts += _titled(
            "unseen devices, each predicted from the others: errors of device time, %",
            transfer_table(report.transfer),
            *_transfer_summary(report.transfer),
        )
    parts += [Text(f"note: {note}", style="dim") for note in report.notes]
    return Group(*parts)


def operators_table(evaluations: Sequence[OperatorEvaluation]) -> Table:
    """Held-out rows, a line for each kind of each data set under its device; errors in percent."""
    columns = [
        Column("op"),
        Column("rows"),
        Column("held", "held\nout"),
        Column("mape", "mean", digits=1),
        Column("median", "med-\nian", digits=1),
        Column("bias", digits=1),
        Column("tau"),
        Column("small", "<0.2\nms", digits=1),
        Column("middle", "0.2-1\nms", digits=1),
        Column("large", ">1\nms", digits=1),
        Column("total", digits=1),
        Column("inside", "in-\nside", digits=0),
        Column("roof", digits=1),
    ]
    rows: list[dict[str, Cell]] = []
    for device, own in groupby(evaluations, key=lambda each: each.device):
        rows.append({"op": device})
        rows += [_operators_row(each) for each in own]
    return _without_wrapped_numbers(records_table("", rows, columns))


def _operators_row(each: OperatorEvaluation) -> dict[str, Cell]:
    unseen = each.unseen
    gpu = unseen.gpu_time()
    small, middle, large = unseen.by_bucket().values()
    ((kind, precision),) = each.kinds
    shown = _shown(key_of(kind, precision), each.data_set)
    return {
        "op": f"  {shown}",
        "rows": len(each),
        "held": len(unseen),
        "mape": _percent(gpu.mean_error),
        "median": _percent(gpu.median_error),
        "bias": _percent(gpu.bias),
        "tau": gpu.kendall_tau,
        "small": _mean(small),
        "middle": _mean(middle),
        "large": _mean(large),
        "total": _mean(unseen.total_time()),
        "inside": _percent(unseen.coverage()),
        "roof": _mean(unseen.roofline()),
    }


def _shown(kind: str, data_set: str) -> str:
    """The kind; a table that is named for another spelling of it goes by that, as conv2d."""
    name = data_set.partition(".")[0]
    return name if ALIASES.get(name) == kind else kind


def _clamped(evaluations: Sequence[OperatorEvaluation]) -> Iterator[str]:
    counts = {each.data_set: int(each.clamped.sum()) for each in evaluations if each.clamped.any()}
    if counts:
        of = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        yield f"rows with less device time than their recording can tell, taken for the least that it can: {of}"


def stages_table(evaluations: Sequence[StageEvaluation]) -> Table:
    """Stages of several groups, a line for each data set; errors in percent."""
    columns = [
        Column("data set", wraps=True),
        Column("stages"),
        Column("mean", digits=1),
        Column("median", digits=1),
        Column("bias", digits=1),
        Column("tau"),
        Column("gain", "mean\nof gain", digits=1),
        Column("gain_bias", "bias\nof gain", digits=1),
    ]
    rows: list[dict[str, Cell]] = []
    for device, own in groupby(evaluations, key=lambda each: each.device):
        rows.append({"data set": device})
        for each in own:
            concurrent = each.concurrent
            latency, gain = concurrent.latency(), concurrent.gain()
            rows.append(
                {
                    "data set": f"  {each.data_set}",
                    "stages": len(concurrent),
                    "mean": _percent(latency.mean_error),
                    "median": _percent(latency.median_error),
                    "bias": _percent(latency.bias),
                    "tau": latency.kendall_tau,
                    "gain": _percent(gain.mean_error),
                    "gain_bias": _percent(gain.bias),
                }
            )
    return _without_wrapped_numbers(records_table("", rows, columns))


def _networks(evaluation: NetworkEvaluation) -> Iterator[RenderableType]:
    if evaluation.latencies:
        yield from _titled(
            f"networks on {evaluation.device} against published latencies",
            networks_table(evaluation),
            *_networks_summary(evaluation),
        )
    if evaluation.stages:
        rows: list[dict[str, Cell]] = [
            {
                "stage": each.stage.replace(",", " || "),
                "predicted_us": each.predicted_us,
                "published_us": each.published_us,
                "error_percent": 100 * each.error,
                "left_out_percent": _percent(each.left_out_error),
            }
            for each in evaluation.stages
        ]
        columns = [
            Column("stage"),
            Column("predicted_us", digits=1),
            Column("published_us", digits=1),
            Column("error_percent", "in-sample" if evaluation.in_sample else "", digits=1),
            Column("left_out_percent", "left out", digits=1),
        ]
        yield from _titled(f"stages of the sample network on {evaluation.device}", records_table("", rows, columns))
    for each in evaluation.active_warps:
        yield Text(
            f"active warps of ios-both over sequential, {each.model}: {each.predicted:.2f}, "
            f"published {each.published:.2f}\n"
        )


def networks_table(evaluation: NetworkEvaluation) -> Table:
    """Schedulers of each network, predicted and published."""
    columns = [
        Column("network"),
        Column("published_ms", digits=3),
        Column("predicted_ms", "in-\nsample", digits=3),
        Column("error_percent", digits=1),
        Column("left_out_ms", "left\nout", digits=3),
        Column("left_out_error_percent", "error", digits=1),
        Column("low_ms", digits=3),
        Column("high_ms", digits=3),
        Column("gain_x", "gain"),
        Column("published_gain_x", "publ."),
    ]
    rows: list[dict[str, Cell]] = []
    for (model, batch), own in groupby(evaluation.latencies, key=lambda each: (each.model, each.batch)):
        rows.append({"network": f"{model}, batch {batch}"})
        for each in own:
            rows.append(
                {
                    "network": f"  {each.scheduler}",
                    "published_ms": each.published_us / 1e3,
                    "predicted_ms": each.predicted_us / 1e3 if each.is_in_sample else None,
                    "error_percent": 100 * each.error if each.is_in_sample else None,
                    "left_out_ms": each.foretold.predicted_us / 1e3,
                    "left_out_error_percent": 100 * each.foretold_error,
                    "low_ms": each.foretold.low_us / 1e3,
                    "high_ms": each.foretold.high_us / 1e3,
                    "gain_x": each.speedup,
                    "published_gain_x": each.published_speedup,
                }
            )
    return records_table("", rows, columns)


def _networks_summary(evaluation: NetworkEvaluation) -> Iterator[str]:
    yield (
        "in-sample: by a fit that saw the figure itself; left out, with its interval: by a fit that saw no figure of that network"
    )
    count, orders = len(evaluation.latencies), len(evaluation.orders)
    for title, errors, right in (
        ("in-sample", evaluation.errors, sum(order.is_right for order in evaluation.orders)),
        ("left out", evaluation.foretold_errors, sum(order.is_foretold for order in evaluation.orders)),
    ):
        if errors:
            mean, worst = mean_size(errors) or 0.0, largest(errors) or 0.0
            yield (
                f"{title}: mean error {100 * mean:.1f}%, worst {100 * worst:+.1f}%; {right} of {orders} orders beyond 3% "
                "are right"
            )
    yield f"{sum(each.is_covered for each in evaluation.latencies)} of {count} figures in the intervals of what is left out"
    for order in evaluation.orders:
        if not (order.is_right and order.is_foretold):
            yield (
                f"wrong: {order.faster} is {100 * order.published:.1f}% faster than {order.slower} on {order.model}, "
                f"batch {order.batch}; predicted {100 * order.predicted:+.1f}%, left out {100 * order.foretold:+.1f}%"
            )


def engines_table(agreements: Sequence[EngineAgreement]) -> Table:
    """A line for each device, differences in percent."""
    columns = [
        Column("device"),
        Column("priced", "stages\npriced"),
        Column("stages", "of"),
        Column("median", digits=1),
        Column("p95", "95th\npercentile", digits=1),
        Column("signed", "signed\nmedian", digits=1),
        Column("analytic", "analytic's\nbest", digits=1),
        Column("events", "event-driven's\nbest", digits=1),
    ]
    rows: list[dict[str, Cell]] = [
        {
            "device": each.device,
            "priced": len(each.groups),
            "stages": each.total,
            "median": 100 * each.median,
            "p95": 100 * each.percentile_95,
            "signed": 100 * each.bias,
            "analytic": _percent(each.analytic_optimum_by_events),
            "events": _percent(each.events_optimum_by_analytic),
        }
        for each in agreements
    ]
    return records_table("", rows, columns)


def transfer_table(found: LeaveOneOut) -> Table:
    """A line for each kind and data set of each device left out; errors in percent."""
    columns = [
        Column("op"),
        Column("rows"),
        Column("mean", digits=1),
        Column("median", digits=1),
        Column("bias", digits=1),
        Column("tau"),
        Column("refined", "mean with\nsamples", digits=1),
    ]
    rows: list[dict[str, Cell]] = []
    for device, own in groupby(sorted(found.rows, key=lambda row: row.device), key=lambda row: row.device):
        rows.append({"op": device})
        for row in own:
            accuracy = row.zero_shot.accuracy
            refined = row.refined
            rows.append(
                {
                    "op": f"  {_shown(row.kind, row.zero_shot.data_set)}",
                    "rows": accuracy.rows,
                    "mean": _percent(accuracy.mean_error),
                    "median": _percent(accuracy.median_error),
                    "bias": _percent(accuracy.bias),
                    "tau": accuracy.kendall_tau,
                    "refined": None if refined is None else _mean(refined.accuracy),
                }
            )
    return _without_wrapped_numbers(records_table("", rows, columns))


def _transfer_summary(found: LeaveOneOut) -> Iterator[str]:
    """Mean and worst error of the kind that samples are of, over the large data sets of it."""
    rows = sampled_rows(found)
    errors = [float(np.abs(row.zero_shot.errors).mean()) for row in rows]
    refined = [float(np.abs(row.refined.errors).mean()) for row in rows if row.refined is not None]
    if errors:
        yield (
            f"{SAMPLED_KIND}, from datasheet facts: mean {100 * fmean(errors):.1f}, worst {100 * max(errors):.1f}"
            + (
                f"; with {found.samples} samples: mean {100 * fmean(refined):.1f}, worst {100 * max(refined):.1f}"
                if refined
                else ""
            )
        )


def _titled(title: str, table: Table, *lines: str) -> Iterator[RenderableType]:
    # Not as the table's own title, which would wrap at the table's width.
    yield Text(title, style="bold")
    yield table
    yield from (Text(line, style="dim") for line in lines)
    yield Text("")


def _without_wrapped_numbers(table: Table) -> Table:
    """Where the terminal is too narrow, names give way, not numbers."""
    for index, column in enumerate(table.columns):
        column.no_wrap = index > 0
    return table


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def _mean(accuracy: Accuracy) -> float | None:
    return _percent(accuracy.mean_error)
