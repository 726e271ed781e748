"""Errors of operators that were held out by size, by device or by family, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

import numpy as np
from rich.table import Table

from evidence.validation.published_models import PUBLISHED_MODEL, FamilyErrors
from evidence.validation.splits import SplitRows
from iossim.base.tables import Cell, Column, records_table
from iossim.calibration.accuracy import coverage, width
from iossim.calibration.accuracy_tables import FEWEST_SHOWN, few_rows, mean, percent, shown
from iossim.calibration.validation import OperatorEvaluation
from iossim.prediction.bands import key_of

_TITLES = {"in_distribution": "in", "out_of_distribution": "out"}


def size_table(rows: Sequence[SplitRows]) -> Table:
    """One line per kind of each data set; errors in percent."""
    columns = [
        Column("op", shortens=True),
        Column("rows", "rows"),
        Column("inside", "mean\ninside", digits=1),
        Column("largest", "mean\nlargest", digits=1),
        Column("bias", digits=1),
        Column("ratio"),
        Column("far", "over\n2x"),
        Column("roof_inside", "roof\ninside", digits=1),
        Column("roof_largest", "roof\nlargest", digits=1),
        Column("covered", "within", digits=0),
        Column("wide", digits=2),
    ]
    parts = {(row.device, row.data_set, row.key, row.part): row for row in rows}
    lines: list[dict[str, Cell]] = []
    largest = [row for row in rows if row.part == "largest" and len(row) >= FEWEST_SHOWN]
    for device, own in groupby(largest, key=lambda row: row.device):
        lines.append({"op": device})
        for row in own:
            inside = parts.get((row.device, row.data_set, row.key, "inside"))
            error, within = _error(row), None if inside is None else _error(inside)
            lines.append(
                {
                    "op": f"  {shown(row.key, row.data_set)}",
                    "rows": len(row),
                    "inside": within,
                    "largest": error,
                    "bias": percent(row.accuracy.bias),
                    "ratio": None if within is None or error is None else error / within,
                    "far": row.far_off,
                    "roof_inside": None if inside is None else mean(inside.roofline),
                    "roof_largest": mean(row.roofline),
                    "covered": percent(row.coverage),
                    "wide": row.width,
                }
            )
    return records_table("", lines, columns)


def device_table(rows: Sequence[SplitRows]) -> Table:
    """One line per kind and data set of each device left out; errors in percent."""
    columns = [
        Column("op", shortens=True),
        Column("rows"),
        Column("mean", digits=1),
        Column("median", digits=1),
        Column("bias", digits=1),
        Column("roof", digits=1),
        Column("covered", "within", digits=0),
        Column("wide", digits=2),
        Column("sampled", "with\nsamples", digits=1),
        Column("sampled_covered", "within", digits=0),
        Column("sampled_wide", "wide", digits=2),
    ]
    sampled = {(row.device, row.data_set, row.key): row for row in rows if row.part == "sampled"}
    lines: list[dict[str, Cell]] = []
    zero_shot = sorted((row for row in rows if row.part == "zero-shot"), key=lambda row: row.device)
    for device, several in groupby(zero_shot, key=lambda row: row.device):
        own = list(several)
        lines.append({"op": device})
        for row in own:
            if len(row) < FEWEST_SHOWN:
                continue
            accuracy, better = row.accuracy, sampled.get((row.device, row.data_set, row.key))
            line: dict[str, Cell] = {
                "op": f"  {shown(row.key, row.data_set)}",
                "rows": accuracy.rows,
                "mean": percent(accuracy.mean_error),
                "median": percent(accuracy.median_error),
                "bias": percent(accuracy.bias),
                "roof": mean(row.roofline),
                "covered": percent(row.coverage),
                "wide": row.width,
            }
            if better is not None:
                line |= {
                    "sampled": _error(better),
                    "sampled_covered": percent(better.coverage),
                    "sampled_wide": better.width,
                }
            lines.append(line)
        lines += few_rows((len(row), row.predicted_us / row.measured_us - 1) for row in own)
    return records_table("", lines, columns)


def device_summary_table(rows: Sequence[SplitRows], samples: int) -> Table:
    """Mean and worst error over data sets of devices left out, for each kind with samples; in percent."""
    columns = [
        Column("op", shortens=True),
        Column("sets"),
        Column("zero-shot", "mean", digits=1),
        Column("zero-shot worst", "worst", digits=1),
    ]
    columns += [
        Column("sampled", f"mean with\n{samples} samples", digits=1),
        Column("sampled worst", "worst", digits=1),
    ]
    judged = {(row.device, row.data_set, row.key) for row in rows if row.part == "sampled"}
    lines: list[dict[str, Cell]] = []
    for key in sorted({key for _, _, key in judged}):
        line: dict[str, Cell] = {"op": key}
        for part in ("zero-shot", "sampled"):
            own = [row for row in rows if row.part == part and row.key == key]
            errors = [_error(row) or 0.0 for row in own if (row.device, row.data_set, key) in judged]
            line |= {"sets": len(errors), part: fmean(errors), f"{part} worst": max(errors)}
        lines.append(line)
    return records_table("", lines, columns)


def family_table(rows: Sequence[SplitRows]) -> Table:
    """One line per kind of each data set whose family was left out; errors in percent."""
    columns = [
        Column("op", shortens=True),
        Column("left out", wraps=True),
        Column("rows"),
        Column("mean", digits=1),
        Column("bias", digits=1),
        Column("far", "over\n2x"),
    ]
    lines: list[dict[str, Cell]] = []
    for device, own in groupby(sorted(rows, key=lambda row: row.device), key=lambda row: row.device):
        enough = [row for row in own if len(row) >= FEWEST_SHOWN]
        lines += [{"op": device}] if enough else []
        lines += [
            {
                "op": f"  {shown(row.key, row.data_set)}",
                "left out": row.part,
                "rows": len(row),
                "mean": _error(row),
                "bias": percent(row.accuracy.bias),
                "far": row.far_off,
            }
            for row in enough
        ]
    return records_table("", lines, columns)


def published_table(families: Sequence[FamilyErrors]) -> Table:
    """Families of operators beside a roofline and the published errors of another model; in percent."""
    columns = [Column("family", shortens=True), Column("setting"), Column("devices"), Column("ours", digits=1)]
    columns += [Column("roofline", digits=1), Column("published", PUBLISHED_MODEL, digits=1), Column("better")]
    lines: list[dict[str, Cell]] = [
        {
            "family": each.family.replace("_", " "),
            "setting": _TITLES[each.setting],
            "devices": each.devices,
            "ours": percent(each.error),
            "roofline": percent(each.roofline),
            "published": 100 * each.published,
            "better": None if each.is_better is None else "yes" if each.is_better else "no",
        }
        for each in families
    ]
    return records_table("", lines, columns)


def coverage_table(operators: Sequence[OperatorEvaluation], rows: Sequence[SplitRows]) -> Table:
    """Measured times within the stated interval by kind and split, over all devices, %, and its median high over
    low.
    """
    parts = {"hash": "hash", "largest": "largest", "zero-shot": "device", "sampled": "sampled"}
    columns = [Column("op", shortens=True)]
    for part, title in parts.items():
        columns += [Column(part, f"{title}\nwithin", digits=0), Column(f"{part} wide", "wide", digits=2)]
    judged: list[tuple[str, str, OperatorEvaluation | SplitRows]] = [
        (key_of(*each.kinds[0]), "hash", each.unseen) for each in operators
    ]
    judged += [(row.key, row.part, row) for row in rows]
    lines: list[dict[str, Cell]] = []
    for key in sorted({key for key, _, _ in judged}):
        line: dict[str, Cell] = {"op": key}
        count = 0
        for part in parts:
            own = [each for name, its, each in judged if (name, its) == (key, part)]
            if own and sum(map(len, own)) >= FEWEST_SHOWN:
                low, high, measured = (
                    np.concatenate([getattr(each, name) for each in own])
                    for name in ("low_us", "high_us", "measured_us")
                )
                line |= {part: percent(coverage(low, high, measured)), f"{part} wide": width(low, high)}
                count += 1
        lines += [line] if count else []
    return records_table("", lines, columns)


def _error(row: SplitRows) -> float | None:
    return mean(row.accuracy)
