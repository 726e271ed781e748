"""Prediction errors as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evidence.tables.concurrency_tables import concurrency_tables, sm_share_tables
from evidence.tables.split_tables import (
    coverage_table,
    device_summary_table,
    device_table,
    family_table,
    published_table,
    size_table,
)
from evidence.validation.engines import EngineAgreement
from evidence.validation.networks import NetworkEvaluation, largest, mean_size
from evidence.validation.report import ValidationReport
from iossim.base.tables import Cell, Column, records_table
from iossim.calibration.accuracy_tables import measured_part, operators_part, percent, stages_part, titled


def accuracy_tables(report: ValidationReport) -> RenderableType:
    """All tables of a report, each with a line that says what its figures cover."""
    parts: list[RenderableType] = []
    parts += operators_part(report.operators)
    parts += _splits(report)
    parts += stages_part(report.stages)
    for networks in report.networks:
        parts += _networks(networks)
    parts += measured_part(report.measured)
    for side_by_side in report.concurrency:
        for title, table, lines in concurrency_tables(side_by_side):
            parts += titled(title, table, *lines)
    for found in report.shares:
        for title, table, line in sm_share_tables(found):
            parts += titled(title, table, line)
    if report.engines:
        parts += titled(
            f"event-driven engine against analytic prices: stages of {report.engines[0].network}, %",
            engines_table(report.engines),
            "differences of stage prices, and how much slower the best schedule by one is at the prices of the other",
        )
    parts += [Text(f"note: {note}", style="dim") for note in report.notes]
    return Group(*parts)


def _splits(report: ValidationReport) -> Iterator[RenderableType]:
    """Operators held out otherwise than by hash, and their errors."""
    rows = {split: [row for row in report.splits if row.split == split] for split in ("size", "device", "family")}
    if rows["size"]:
        yield from titled(
            "largest operators: errors of device time, by a fit that saw the smaller 80% by work, %",
            size_table(rows["size"]),
            "inside: small shapes that are held out; ratio: largest over inside; over 2x: rows off by more than a "
            "factor of two; within: in the stated interval; wide: its median high over low",
        )
    if rows["device"]:
        assert report.transfer is not None, "its rows come of it"
        yield from titled(
            "unseen devices, each predicted from the others: errors of device time, %",
            device_table(rows["device"]),
            "roof: efficiencies of the other devices' rooflines, averaged; within: in intervals as wide as leaving "
            "out the others says; samples are of the same kind",
        )
        yield from titled(
            "unseen devices by kind: errors of device time over data sets, %",
            device_summary_table(rows["device"], report.transfer.samples),
        )
    if rows["family"]:
        yield from titled(
            "families of kernels left out of the fit: errors of device time, %", family_table(rows["family"])
        )
    if rows["size"] or rows["device"]:
        yield from titled(
            "stated intervals: measured times within, %, where 90 are said, and the median high over low",
            coverage_table(report.operators, report.splits),
        )
    if rows["device"] and report.families:
        yield from titled(
            "families of operators beside another model's published errors, mean over devices, %",
            published_table(report.families),
            "in: held-out shapes of devices that were fitted; out: devices left out, from datasheet facts",
        )


def _networks(evaluation: NetworkEvaluation) -> Iterator[RenderableType]:
    if evaluation.latencies:
        yield from titled(
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
                "left_out_percent": percent(each.left_out_error),
            }
            for each in evaluation.stages
        ]
        columns = [
            Column("stage"),
            Column("predicted_us", digits=1),
            Column("published_us", digits=1),
            Column("error_percent", "in-sample error" if evaluation.in_sample else "error", digits=1),
            Column("left_out_percent", "LOO error", digits=1),
        ]
        yield from titled(
            f"stages of the sample network on {evaluation.device}",
            records_table("", rows, columns),
            "concat is three short copies: its time is launch overhead, which a fit without this network overestimates",
        )
    for each in evaluation.active_warps:
        yield Text(
            f"active warps of ios-both over sequential, {each.model}: {each.predicted:.2f}, "
            f"published {each.published:.2f}\n"
        )


def networks_table(evaluation: NetworkEvaluation) -> Table:
    """Schedulers of each network, predicted and published."""
    columns = [
        Column("network", shortens=True),
        Column("published_ms", digits=3),
        Column("predicted_ms", digits=3),
        Column("error_percent", digits=1),
        Column("left_out_ms", "LOO", digits=3),
        Column("left_out_error_percent", "LOO", digits=1),
        Column("gain_x", "gain"),
        Column("published_gain_x", "published"),
    ]
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
    return records_table("", rows, columns)


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
                f"{100 * order.foretold:+.1f}%"
            )


def engines_table(agreements: Sequence[EngineAgreement]) -> Table:
    """One line per device, differences in percent."""
    columns = [
        Column("device", shortens=True),
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
            "analytic": percent(each.analytic_optimum_by_events),
            "events": percent(each.events_optimum_by_analytic),
        }
        for each in agreements
    ]
    return records_table("", rows, columns)
