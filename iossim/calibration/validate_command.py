"""``iossim validate``: errors of predictions against the user's own measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from iossim.base.errors import OptionError
from iossim.cli.options import command, with_flags
from iossim.cli.outputs import TimelineOutputs, Writer, json_file, pictures, present, wants_plot
from iossim.cli.progress import progress_bars


@command
def validate(
    device: list[str] | None = None,
    data: list[Path] | None = None,
    out: Path | None = None,
    plot: bool | None = None,
    as_json: bool = False,
) -> None:
    """Compare predictions with measured operators, stages of several groups, and whole networks.

    Operators are judged on held-out shapes, which are chosen by their hash.
    """
    from iossim.calibration.accuracy_report import accuracy_tables, operators_figures
    from iossim.calibration.validation import validate as judge
    from iossim.hardware.load import device as load_device

    if not data:
        raise OptionError("validate needs measurements; give --data FILES of 'iossim bench' or 'iossim profile'")
    TimelineOutputs(out, plot=plot).check_files()
    profiles = [load_device(name) for name in device] if device else None
    with progress_bars(quiet=as_json, unit="") as progress:
        found = judge(data, profiles, progress)
    found = replace(found, notes=tuple(map(with_flags, found.notes)))

    def files() -> dict[str, Writer]:
        made = {"validation.json": json_file(found.to_json())}
        return made | (pictures(*operators_figures(found.operators)) if wants_plot(plot) else {})

    present(found.to_json, [accuracy_tables(found)], as_json, out=out, files=files)
