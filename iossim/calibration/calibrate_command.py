"""``iossim calibrate``: fit a device's parameters to measured operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from iossim.base.errors import OptionError
from iossim.cli.options import command
from iossim.cli.outputs import Part, notes, present
from iossim.cli.progress import progress_bars

if TYPE_CHECKING:
    from iossim.base.tables import Cell
    from iossim.calibration.calibrate import DeviceData
    from iossim.calibration.profile_fit import FittedProfiles
    from iossim.hardware.profile import DeviceProfile


@command
def calibrate(
    files: list[Path] | None = None,
    data: list[Path] | None = None,
    device: str | None = None,
    also: list[str] | None = None,
    out: Path | None = None,
    held_out: float = 0.3,
    folds: int = 5,
    seed: int = 0,
    trust_labels: bool = False,
    published: bool = False,
    as_json: bool = False,
) -> None:
    """Fit a device's parameters to measured operators and write its profile, with errors on shapes held out.

    The boards of --also get theirs beside it, as NAME.calibrated.yaml.

    Shipped devices are left unchanged: the profile goes to NAME.calibrated.yaml in this folder, or to --out, and is
    used with --device FILE.yaml.
    """
    from iossim.calibration.profile_fit import fit_profiles
    from iossim.hardware.load import device as load_device
    from iossim.hardware.names import device_names
    from iossim.hardware.write import check_writable, write_profile

    if device is None:
        raise OptionError(f"calibrate needs a device; give --device NAME; known: {', '.join(device_names())}")
    own = [*(data or ()), *(files or ())]
    if not own and not also:
        raise OptionError("calibrate needs measurements; give --data FILES")
    if not 0 <= held_out < 1:
        raise OptionError(f"--held-out {held_out:g} is no part of the shapes; give at least 0 and less than 1")
    if folds < 0 or folds == 1 or folds > 20:
        raise OptionError(f"--folds {folds} is no number of folds; give 0 to leave them out, or 2 to 20")
    if seed < 0:
        raise OptionError(f"--seed {seed} is negative; give 0 or more")
    if held_out == 0 and folds == 0:
        raise OptionError("--held-out 0 and --folds 0 leave nothing to judge the fit by; give either")
    profile = load_device(device)
    path = out or Path(_file_name(profile))
    check_writable(path)
    devices = _read(profile, own, also or ())
    for board in devices[1:]:
        check_writable(path.with_name(_file_name(board.profile)))
    with progress_bars(quiet=as_json, unit="steps") as start:
        bar = cache(start)
        found = fit_profiles(
            devices,
            published=published,
            date=date.today().isoformat(),
            held_out=held_out,
            folds=folds,
            seed=seed,
            trusts_labels=trust_labels,
            progress=lambda label, done, total: bar(label)(done, total),
        )
    write_profile(found.profile, path)
    for sister in found.sisters:
        write_profile(sister, path.with_name(_file_name(sister)))
    document = {
        "device": found.profile.name,
        "profile": str(path),
        "parameters": {row["parameter"]: {k: v for k, v in row.items() if k != "parameter"} for row in _rows(found)},
        "provenance": found.profile.provenance.model_dump(mode="json", exclude={"resamples"}),
        "notes": list(found.kernels.notes),
    }
    present(document, _parts(found), as_json)
    for sister in found.sisters:
        typer.echo(f"wrote {path.with_name(_file_name(sister))}", err=True)
    typer.echo(f"wrote {path}; use it with --device {path}", err=True)


def _file_name(profile: DeviceProfile) -> str:
    return f"{profile.name.replace('/', '-')}.calibrated.yaml"


def _read(profile: DeviceProfile, own: Sequence[Path], also: Sequence[str]) -> list[DeviceData]:
    from iossim.calibration.calibrate import DeviceData
    from iossim.hardware.load import device as load_device
    from iossim.measurements.measurement_set import read_measurements

    given: dict[str, tuple[DeviceProfile, list[Path]]] = {profile.name: (profile, list(own))}
    for text in also:
        name, equals, files = text.partition("=")
        if not equals or not name or not files:
            raise OptionError(f"--also {text!r} is not DEVICE=FILE; write --also {name or 'DEVICE'}=FILE")
        sister = load_device(name)
        if sister.architecture != profile.architecture:
            raise OptionError(
                f"--also {text!r}: {sister.name} is {sister.architecture}, {profile.name} is {profile.architecture}; "
                "only boards with the same chip share parameters: calibrate them one by one"
            )
        given.setdefault(sister.name, (sister, []))[1].extend(Path(file) for file in files.split(","))
    everything = [path.absolute() for _, paths in given.values() for path in paths]
    twice = next((path for path in everything if everything.count(path) > 1), None)
    if twice is not None:
        raise OptionError(f"measurements {twice} are given twice; give each file once")
    return [
        DeviceData(one, tuple(read_measurements(path, one.name) for path in paths))
        for one, paths in given.values()
        if paths or one is profile
    ]


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
