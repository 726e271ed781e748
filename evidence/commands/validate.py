"""``python -m evidence validate``: every quoted figure of accuracy, recomputed from data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from iossim.cli.options import command, with_flags
from iossim.cli.outputs import TimelineOutputs, Writer, json_file, pictures, present, wants_plot
from iossim.cli.progress import progress_bars


@command
def validate(
    device: list[str] | None = None,
    data: list[Path] | None = None,
    part: list[str] | None = None,
    split: list[str] | None = None,
    quick: bool = False,
    out: Path | None = None,
    plot: bool | None = None,
    as_json: bool = False,
) -> None:
    """Compare predictions with measured operators, with published and measured networks, with concurrent kernels and
    parts of a device, and one engine with the other.

    Operators are judged on held-out data: shapes by their hash, the largest shapes, and whole devices.
    """
    from evidence.tables.accuracy_tables import accuracy_tables
    from evidence.validation.report import validate as recompute
    from iossim.calibration.accuracy_report import operators_figures
    from iossim.hardware.load import device as load_device

    TimelineOutputs(out, plot=plot).check_files()
    profiles = [load_device(name) for name in device] if device else None
    with progress_bars(quiet=as_json, unit="") as progress:
        report = recompute(profiles, data, part or None, quick=quick, progress=progress, splits=split or None)
    report = replace(report, notes=tuple(map(with_flags, report.notes)))

    def files() -> dict[str, Writer]:
        made = {"validation.json": json_file(report.to_json())}
        return made | (pictures(*operators_figures(report.operators)) if wants_plot(plot) else {})

    present(report.to_json, [accuracy_tables(report)], as_json, out=out, files=files)
