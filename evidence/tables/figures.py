"""Prediction errors as pictures: operators, networks, one engine against the other, unseen devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from evidence.profiles.leave_one_out import LeftOut
from evidence.validation.engines import EngineAgreement
from evidence.validation.networks import NetworkEvaluation
from evidence.validation.report import ValidationReport, sampled_rows
from iossim.base.tables import Cell
from iossim.calibration.accuracy_figures import HELD_OUT, SEEN, AccuracyGrid, operators_figures
from iossim.report.figures.bars import bar_legend, bar_record, bar_specification, share_scales
from iossim.report.figures.figure import Figure, Panel

Flags = NDArray[np.bool_]

#: Width of the predicted latency and its error after a bar.
_TEXT_PIXELS = 110


def accuracy_figures(report: ValidationReport) -> list[Figure]:
    """All figures of a report, named as their files; a part without figures has none."""
    figures = operators_figures(report.operators)
    figures += [networks_figure(networks) for networks in report.networks if networks.latencies]
    if report.engines:
        figures.append(engines_figure(report.engines))
    if report.transfer is not None:
        left_out = sorted(sampled_rows(report.transfer), key=lambda row: row.device)
        figures += [
            transfer_figure(device, list(own), report.transfer.samples)
            for device, own in groupby(left_out, key=lambda row: row.device)
        ]
    return figures


def engines_figure(agreements: Sequence[EngineAgreement]) -> Figure:
    """Prices of stages by both engines, one panel per device, and their differences."""
    grid = AccuracyGrid("analytic, us", "event-driven, us", "difference, %")
    for each in agreements:
        several = each.groups > 1
        name = f"{each.device}: {len(each.groups):,} of {each.total:,} stages"
        said = f"median {each.median:.1%}\n95th percentile {each.percentile_95:.1%}"
        grid.identity(name, said, each.analytic_us, each.events_us, several)
        grid.residuals("analytic, us", each.analytic_us, each.difference, several)
    title = f"Stages of {agreements[0].network}: event-driven against analytic"
    return grid.figure("engines", title, {"several groups": HELD_OUT, "one group": SEEN}, "median difference")


def transfer_figure(device: str, rows: Sequence[LeftOut], samples: int) -> Figure:
    """Predicted against measured device time, and errors, for each kind of a device left out."""
    grid = AccuracyGrid("measured, us", "predicted, us", "error, %")
    for row in rows:
        measured_us = row.zero_shot.measured_us
        every = np.ones(len(measured_us), dtype=np.bool_)
        said = f"mean error {np.abs(row.zero_shot.errors).mean():.1%}"
        if row.refined is not None:
            said += f"\nwith {samples} samples {np.abs(row.refined.errors).mean():.1%}"
        grid.identity(f"{row.kind}, {row.zero_shot.data_set}", said, measured_us, row.zero_shot.predicted_us, every)
        grid.residuals("measured, us", measured_us, row.zero_shot.errors, every)
    title = f"Unseen devices: {device}, from datasheet facts"
    return grid.figure(f"transfer.{device}", title, {"operators": HELD_OUT}, "median error")


def networks_figure(evaluation: NetworkEvaluation) -> Figure:
    """One panel per network: a bar of each scheduler's predicted latency with its interval, and the published one."""
    records: list[dict[str, Cell]] = []
    for each in evaluation.latencies:
        told = each.foretold
        latency_ms = told.predicted_us / 1e3
        text = f"{latency_ms:.3f} ms  {each.foretold_error:+.1%}"
        marks = bar_record(latency_ms, text, (told.low_us / 1e3, told.high_us / 1e3), each.published_us / 1e3)
        panel = f"{each.model}, batch {each.batch}"
        records.append({"panel": panel, "scheduler": each.scheduler, "latency_ms": latency_ms, **marks})
    share_scales(records, ["panel"], None)
    panels = []
    for panel, group in groupby(records, key=lambda record: record["panel"]):
        own = list(group)
        schedulers = [str(record["scheduler"]) for record in own]
        spec = bar_specification("latency_ms", "latency (ms)", schedulers, own, text_pixels=_TEXT_PIXELS)
        panels.append(Panel(str(panel), spec, {"panel": panel}))
    return Figure(
        name=f"networks.{evaluation.device}",
        title=f"Networks on {evaluation.device}: predicted and published latency",
        finding="bars: predicted by a fit without the network, and how far that is from the published latency",
        records=tuple(records),
        panels=tuple(panels),
        legend=bar_legend(records, "90% interval of measurements"),
        stacked=True,
        panel_pixels=640,
    )
