"""``iossim devices``: known devices, the facts of one, and new ones from datasheet facts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from iossim.base.errors import DeviceError, IossimError, OptionError, warn_once
from iossim.cli.options import OptionGroup, command, with_flags
from iossim.cli.outputs import Part, present, table

if TYPE_CHECKING:
    from iossim.base.tables import Cell
    from iossim.hardware.profile import Device


@dataclass(frozen=True)
class DatasheetFacts(OptionGroup):
    """Facts of a datasheet, under their names in profiles."""

    sm_count: int | None = None
    boost_clock_ghz: float | None = None
    dram_bandwidth_gbps: float | None = None
    l2_mib: float | None = None
    board_power_w: float | None = None
    compute_capability: str | None = None
    fp32_lanes_per_sm: int | None = None
    dram_gib: float | None = None


@command
def list_devices(as_json: bool = False) -> None:
    """List the devices that ship, the user's, and those of plugins; an unreadable profile is a warning."""
    from iossim.hardware.edge import any_device
    from iossim.hardware.names import device_names, edge_names, origin

    rows: list[dict[str, Any]] = []
    for name in (*device_names(), *edge_names()):
        try:
            known = any_device(name)
        except IossimError as error:
            warn_once(with_flags(str(error)))
            continue
        rows.append({"name": name, "also": known.aliases, **_facts(known), "from": origin(name)})
    # A path may be long; a device's name must not be shortened.
    shown = [{**row, "also": ", ".join(row["also"])} for row in rows]
    titles = {"architecture": "arch."}
    present(rows, table("Devices", shown, titles=titles, wraps=("also", "from"), digits={"dram_gbps": 1}), as_json)


def _facts(known: Device) -> dict[str, Cell]:
    from iossim.hardware.edge import EdgeDevice
    from iossim.hardware.profile import DeviceProfile

    if isinstance(known, DeviceProfile):
        return {
            "architecture": str(known.architecture).partition("-")[0],
            "SMs": known.sm_count,
            "clock_ghz": known.boost_clock_ghz,
            "fp32_tflops": known.fp32_tflops,
            "dram_gbps": known.dram_bandwidth_gbps,
            "parameters": known.provenance.kind,
        }
    assert isinstance(known, EdgeDevice)
    return {
        "architecture": known.kind,
        "SMs": known.units.value,
        "clock_ghz": known.clock_ghz.value,
        "fp32_tflops": known.gflops(known.first_precision) / 1e3,
        "dram_gbps": known.external.bandwidth_gbps.value,
        "parameters": "datasheet",
    }


@command
def show_device(name: str, whole: bool = False, as_json: bool = False) -> None:
    """Show a device: its facts, parameters and errors; with --all or --json the profile, which can be read again."""
    import yaml

    from iossim.hardware.edge import any_device
    from iossim.report.profile_tables import device_summary

    profile = any_device(name)
    document = profile.model_dump(mode="json")

    def parts() -> Iterator[Part]:
        yield yaml.safe_dump(document, sort_keys=False).rstrip() if whole else device_summary(profile)

    present(document, parts(), as_json)


@command
def derive(
    name: str,
    like: str,
    *,
    facts: DatasheetFacts,
    samples: Path | None = None,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Write the profile of a device from its datasheet, with parameters transferred from calibrated devices."""
    from iossim.base.registry import needed_part
    from iossim.hardware.load import device
    from iossim.hardware.override import derive as derive_profile
    from iossim.hardware.write import check_writable, write_profile

    profile = derive_profile(name, device(like), vars(facts))
    path = out or Path(f"{name}.yaml")
    if out is None and path.exists():
        raise OptionError(f"{path} is there already; give --out {path} to replace it, or another name")
    check_writable(path)
    if samples is not None:
        profile = needed_part("refinement", "samples", "refine_by", "samples")(profile, samples)
    write_profile(profile, path)
    said = (
        f"{profile.name}: {profile.architecture}, {profile.sm_count} SMs at {profile.boost_clock_ghz:g} GHz, "
        f"{profile.fp32_tflops:.1f} fp32 TFLOP/s, {profile.dram_bandwidth_gbps:g} GB/s, "
        f"{profile.datasheet.l2_bytes.value / (1 << 20):g} MiB L2, {profile.board_power_w:g} W"
    )
    document = {"profile": str(path), **profile.model_dump(mode="json")}
    present(document, [f"{said}\n{profile.provenance.note}"], as_json)
    typer.echo(f"wrote {path}; use it with --device {path}", err=True)


@command
def new_device(name: str, out: Path | None = None) -> None:
    """Write a profile to fill in, with a comment on each fact; an existing file is left alone."""
    from iossim.hardware.names import user_folder
    from iossim.hardware.write import write_template

    path = out or Path(f"{name}.yaml")
    write_template(name, path, user_folder())
    typer.echo(f"wrote {path}; fill it in, then: iossim devices validate {path}")


@command
def validate_devices(profiles: list[str], as_json: bool = False) -> None:
    """Check that facts are possible in their generation and agree with one another; exit code 2 if they do not."""
    from iossim.hardware.edge import any_device
    from iossim.hardware.names import file_beside
    from iossim.hardware.plausibility import implausible
    from iossim.hardware.profile import DeviceProfile

    found: dict[str, list[str]] = {}
    for name in map(file_beside, profiles):
        try:
            known = any_device(name, checked=False)  # impossible facts of edge devices are refused when read
            found[name] = implausible(known) if isinstance(known, DeviceProfile) else []
        except IossimError as error:
            found[name] = [with_flags(str(error))]
    said = (
        "\n  ".join([f"{name}:", *problems]) if problems else f"{name}: plausible" for name, problems in found.items()
    )
    present([{"profile": name, "problems": problems} for name, problems in found.items()], said, as_json)
    if wrong := [name for name, problems in found.items() if problems]:
        raise DeviceError(f"{len(wrong)} of {len(found)} profiles failed validation: {', '.join(wrong)}; correct them")
