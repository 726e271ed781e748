"""Prediction errors as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from evidence.tables.concurrency_tables import concurrency_tables, sm_share_tables
from evidence.tables.split_tables import split_tables
from evidence.validation.networks import NetworkEvaluation, largest, mean_size
from evidence.validation.report import ValidationReport
from iossim.base.tables import Cell
from iossim.calibration.accuracy_report import measured_part, operators_part, percent, stages_part, titled


def accuracy_tables(report: ValidationReport) -> RenderableType:
    """All tables of a report, each with a line that says what its figures cover."""
    parts: list[RenderableType] = [*operators_part(report.operators), *split_tables(report)]
    parts += stages_part(report.stages)
    for networks in report.networks:
        parts += _networks(networks)
    parts += measured_part(report.measured)
    for side_by_side in report.concurrency:
        parts += concurrency_tables(side_by_side)
    for found in report.shares:
        parts += sm_share_tables(found)
    parts += _engines(report)
    parts += [Text(f"note: {note}", style="dim") for note in report.notes]
    return Group(*parts)


def _networks(evaluation: NetworkEvaluation) -> Iterator[RenderableType]:
    """Schedulers of each network, and stages of the sample network, predicted and published."""
    rows: list[dict[str, Cell]] = []
    for (model, batch), own in groupby(evaluation.latencies, key=lambda each: (each.model, each.batch)):
        rows.append({"network": f"{model}, batch {batch}"})
        for each in own:
            rows.append(
                {
                    "network": f"  {each.scheduler}{' *' if each.is_in_sample else ''}",
                    "published_ms": each.published_us / 1e3,
                    "predicted_ms": each.predicted_us / 1e3,
                    "error_percent": 100 * each.error,
                    "left_out_ms": each.foretold.predicted_us / 1e3,
                    "left_out_error_percent": 100 * each.foretold_error,
                    "gain_x": each.speedup,
                    "published_gain_x": each.published_speedup,
                }
            )
    title = f"networks on {evaluation.device} against published latencies"
    yield from titled(__package__, "networks", title, rows, *_networks_summary(evaluation))
    rows = [
        {
            "stage": each.stage.replace(",", " || "),
            "predicted_us": each.predicted_us,
            "published_us": each.published_us,
            "in_sample_percent" if evaluation.in_sample else "error_percent": 100 * each.error,
            "left_out_percent": percent(each.left_out_error),
        }
        for each in evaluation.stages
    ]
    yield from titled(
        __package__,
        "sample_stages",
        f"stages of the sample network on {evaluation.device}",
        rows,
        "concat is three short copies: its time is launch overhead, which a fit without this network overestimates",
    )
    for warps in evaluation.active_warps:
        yield Text(
            f"active warps of ios-both over sequential, {warps.model}: {warps.predicted:.2f}, "
            f"published {warps.published:.2f}\n"
        )


def _networks_summary(evaluation: NetworkEvaluation) -> Iterator[str]:
    yield (
        "*: in-sample; the simulator was fitted to this figure. LOO (leave one out): predicted by a fit without any "
        "figure of that network. gain: speed-up over sequential"
    )
    count, orders = len(evaluation.latencies), len(evaluation.orders)
    for title, errors, right in (
        ("in-sample", evaluation.errors, None),
        ("not in-sample", evaluation.unseen_errors, sum(order.is_right for order in evaluation.orders)),
        ("LOO", evaluation.foretold_errors, sum(order.is_foretold for order in evaluation.orders)),
    ):
        if errors:
            mean, worst = mean_size(errors) or 0.0, largest(errors) or 0.0
            ordered = (
                ""
                if right is None
                else f"; {right} of {orders} pairs of schedulers that differ by more than 3% are ranked correctly"
            )
            yield f"{title}: mean error {100 * mean:.1f}%, worst {100 * worst:+.1f}%{ordered}"
    covered = sum(each.is_covered for each in evaluation.latencies)
    yield f"{covered} of {count} published latencies are within the 90% interval of their LOO prediction"
    for order in evaluation.orders:
        if not (order.is_right and order.is_foretold):
            yield (
                f"wrong order: {order.faster} is {100 * order.published:.1f}% faster than {order.slower} on "
                f"{order.model}, batch {order.batch}; predicted {100 * order.predicted:+.1f}%, LOO "
                f"{100 * order.left_out:+.1f}%"
            )


def _engines(report: ValidationReport) -> Iterator[RenderableType]:
    """One line per device, differences in percent."""
    network = report.engines[0].network if report.engines else ""
    rows: list[dict[str, Cell]] = [
        {
            "device": each.device,
            "priced": len(each.groups),
            "stages": each.total,
            "median": 100 * each.median,
            "p95": 100 * each.percentile_95,
            "signed": 100 * each.bias,
            "analytic": percent(each.analytic_optimum_by_events),
            "events": percent(each.events_optimum_by_analytic),
        }
        for each in report.engines
    ]
    return titled(
        __package__,
        "engines",
        f"event-driven engine against analytic prices: stages of {network}, %",
        rows,
        "differences of stage prices, and how much slower the best schedule by one is at the prices of the other",
    )
