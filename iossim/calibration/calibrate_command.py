"""``iossim calibrate``: fit a device's parameters to measured operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from iossim.base.errors import OptionError
from iossim.cli.options import command
from iossim.cli.outputs import Part, notes, present
from iossim.cli.progress import progress_bars

if TYPE_CHECKING:
    from iossim.base.tables import Cell
    from iossim.calibration.profile_fit import FittedProfiles


@command
def calibrate(
    files: list[Path] | None = None,
    data: list[Path] | None = None,
    device: str | None = None,
    out: Path | None = None,
    held_out: float = 0.3,
    folds: int = 5,
    trust_labels: bool = False,
    published: bool = False,
    as_json: bool = False,
) -> None:
    """Fit a device's parameters to measured operators and write its profile, with errors on shapes held out.

    Shipped devices are left unchanged: the profile goes to NAME.calibrated.yaml in this folder, or to --out, and is
    used with --device FILE.yaml.
    """
    from iossim.calibration.calibrate import DeviceData, Protocol
    from iossim.calibration.profile_fit import fit_profiles
    from iossim.hardware.load import device as load_device
    from iossim.hardware.names import device_names
    from iossim.hardware.write import check_writable, write_profile
    from iossim.measurements.measurement_set import read_measurements

    if device is None:
        raise OptionError(f"calibrate needs a device; give --device NAME; known: {', '.join(device_names())}")
    own = [*(data or ()), *(files or ())]
    if not own:
        raise OptionError("calibrate needs measurements; give --data FILES")
    if not 0 <= held_out < 1:
        raise OptionError(f"--held-out {held_out:g} is no part of the shapes; give at least 0 and less than 1")
    if folds < 0 or folds == 1 or folds > 20:
        raise OptionError(f"--folds {folds} is no number of folds; give 0 to leave them out, or 2 to 20")
    if held_out == 0 and folds == 0:
        raise OptionError("--held-out 0 and --folds 0 leave nothing to judge the fit by; give either")
    profile = load_device(device)
    path = out or Path(f"{profile.name.replace('/', '-')}.calibrated.yaml")
    check_writable(path)
    twice = next((file for file in own if [each.absolute() for each in own].count(file.absolute()) > 1), None)
    if twice is not None:
        raise OptionError(f"measurements {twice} are given twice; give each file once")
    measured = DeviceData(profile, tuple(read_measurements(file, profile.name) for file in own))
    today = date.today().isoformat()
    protocol = Protocol(today, held_out=held_out, folds=folds, trusts_labels=trust_labels)
    with progress_bars(quiet=as_json, unit="steps") as progress:
        found = fit_profiles([measured], protocol, published=published, progress=progress)
    write_profile(found.profile, path)
    document = {
        "device": found.profile.name,
        "profile": str(path),
        "parameters": {row["parameter"]: {k: v for k, v in row.items() if k != "parameter"} for row in _rows(found)},
        "provenance": found.profile.provenance.model_dump(mode="json"),
        "notes": list(found.kernels.notes),
    }
    present(document, _parts(found), as_json)
    typer.echo(f"wrote {path}; use it with --device {path}", err=True)


def _rows(found: FittedProfiles) -> list[dict[str, float | str | bool | None]]:
    """Parameters that a fit may change, their spread (None where no resample determines it) and bounds."""
    profile = found.profile
    of_kernels, of_stages = found.kernels.fit.space.parameters, profile.device_kind.fits().concurrency.parameters
    values = profile.parameter_values
    return [
        {
            "parameter": parameter.name,
            "value": values[parameter.name],
            "spread": profile.provenance.spread.get(parameter.name),
            "lower": parameter.lower,
            "upper": parameter.upper,
            "unidentified": parameter.name in profile.provenance.unidentified,
            "at_bound": parameter.name in profile.provenance.at_bounds,
            "fitted": parameter in of_kernels or found.is_concurrency_fitted,
        }
        for parameter in (*of_kernels, *of_stages)
    ]


def _parts(found: FittedProfiles) -> Iterator[Part]:
    from iossim.base.tables import keyed_table
    from iossim.report.profile_tables import error_table

    provenance = found.profile.provenance
    if provenance.held_out:
        yield error_table("Errors of device time on held-out shapes", provenance.held_out)
    if provenance.cross_validated:
        yield ""
        yield error_table("Errors on the other shapes, cross-validated", provenance.cross_validated)
    yield ""
    yield keyed_table("Parameters", list(map(_parameter, _rows(found))), wraps=("remark",))
    yield from notes(
        f"parameters taken from {each.device}: {', '.join(each.parameters)}" for each in provenance.borrowed
    )
    yield from notes(found.kernels.notes)


def _parameter(row: Mapping[str, float | str | bool | None]) -> dict[str, Cell]:
    """Value of a parameter, bootstrapped spread if there is one, bounds, and remarks."""
    remarks = ["not fitted"] * (not row["fitted"])
    remarks += ["at bound"] * bool(row["at_bound"]) + ["not identified"] * bool(row["unidentified"])
    return {
        "parameter": row["parameter"],
        "value": f"{row['value']:.4g}",
        "spread": "" if row["spread"] is None else f"{row['spread']:.2g}",
        "bounds": f"{row['lower']:.4g} to {row['upper']:.4g}",
        "remark": ", ".join(remarks),
    }
