"""Errors of operators that were held out by size or by device, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from rich.console import RenderableType

from evidence.validation.published_models import PUBLISHED_MODEL
from evidence.validation.report import ValidationReport
from evidence.validation.splits import SplitRows
from iossim.base.tables import Cell
from iossim.calibration.accuracy_report import FEWEST_SHOWN, errors, few_rows, mean, percent, shown, titled

Rows = list[dict[str, Cell]]


def split_tables(report: ValidationReport) -> Iterator[RenderableType]:
    """Operators held out otherwise than by hash, and their errors."""
    rows = {split: [row for row in report.splits if row.split == split] for split in ("size", "device")}
    yield from titled(
        __package__,
        "size",
        "largest operators: errors of device time, by a fit that saw the smaller 80% by work, %",
        _by_size(rows["size"]),
        "inside: small shapes that are held out; ratio: largest over inside; over 2x: rows off by more than a "
        "factor of two; within: in the stated interval; wide: its median high over low",
    )
    yield from titled(
        __package__,
        "device",
        "unseen devices, each predicted from the others: errors of device time, %",
        _by_device(rows["device"]),
        "within: in intervals as wide as leaving out the others says; samples are of the same kind",
    )
    lines: Rows = [
        {
            "family": each.family.replace("_", " "),
            "setting": each.setting.partition("_")[0],
            "devices": each.devices,
            "ours": percent(each.error),
            PUBLISHED_MODEL: 100 * each.published,
        }
        for each in (report.families if rows["device"] else ())
    ]
    yield from titled(
        __package__,
        "published",
        "families of operators beside another model's published errors, mean over devices, %",
        lines,
        "in: held-out shapes of devices that were fitted; out: devices left out, from datasheet facts",
    )


def _by_size(rows: Sequence[SplitRows]) -> Rows:
    """One line per kind of each data set; errors in percent."""
    inside_of = _by_kind(rows, "inside")
    lines: Rows = []
    largest = [row for row in rows if row.part == "largest" and len(row) >= FEWEST_SHOWN]
    for device, own in groupby(largest, key=attrgetter("device")):
        lines.append({"op": device})
        for row in own:
            inside = inside_of.get(_kind(row))
            error, within = mean(row.accuracy), None if inside is None else mean(inside.accuracy)
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
    return lines


def _by_device(rows: Sequence[SplitRows]) -> Rows:
    """One line per kind and data set of each device left out; errors in percent."""
    sampled = _by_kind(rows, "sampled")
    lines: Rows = []
    zero_shot = sorted((row for row in rows if row.part == "zero-shot"), key=attrgetter("device"))
    for device, several in groupby(zero_shot, key=attrgetter("device")):
        own = list(several)
        lines.append({"op": device})
        for row in own:
            if len(row) < FEWEST_SHOWN:
                continue
            line = {"op": f"  {shown(row.key, row.data_set)}", "rows": len(row), **errors(row.accuracy)}
            line |= {"covered": percent(row.coverage), "wide": row.width}
            if (better := sampled.get(_kind(row))) is not None:
                line |= {
                    "sampled": mean(better.accuracy),
                    "sampled_covered": percent(better.coverage),
                    "sampled_wide": better.width,
                }
            lines.append(line)
        lines += few_rows((len(row), row.predicted_us / row.measured_us - 1) for row in own)
    return lines


def _kind(row: SplitRows) -> tuple[str, str, str]:
    return row.device, row.data_set, row.key


def _by_kind(rows: Sequence[SplitRows], part: str) -> Mapping[tuple[str, str, str], SplitRows]:
    return {_kind(row): row for row in rows if row.part == part}
