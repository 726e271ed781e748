"""``iossim devices derive``: describe a GPU that is not at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iossim.cli import options
from iossim.cli.options import whole_number
from iossim.cli.outputs import print_json

if TYPE_CHECKING:
    from iossim.hardware.profile import DeviceProfile

Name = Annotated[str, typer.Argument(metavar="NAME", help="What to call the device.")]
Like = Annotated[
    str, typer.Option("--like", metavar="DEVICE", help="The device whose facts hold where none is given.")
]
Sms = Annotated[int | None, typer.Option("--sm", metavar="N", parser=whole_number, help="Streaming multiprocessors.")]
Clock = Annotated[float | None, typer.Option("--clock-ghz", metavar="GHZ", help="Boost clock.")]
Bandwidth = Annotated[float | None, typer.Option("--dram-gbps", metavar="GB/S", help="DRAM bandwidth, GB/s.")]
L2 = Annotated[float | None, typer.Option("--l2-mib", metavar="MIB", help="L2 cache.")]
Power = Annotated[float | None, typer.Option("--power-w", metavar="W", help="Board power.")]
Capability = Annotated[
    str | None, typer.Option("--compute-capability", metavar="X.Y", help="By default that of --like.")
]
Lanes = Annotated[
    int | None, typer.Option("--lanes", metavar="N", parser=whole_number, help="fp32 lanes of a multiprocessor.")
]
Memory = Annotated[float | None, typer.Option("--dram-gib", metavar="GIB", help="DRAM capacity.")]
Samples = Annotated[
    Path | None,
    typer.Option("--samples", metavar="FILE", help="A few measurements of the device, about 20, to refine it with."),
]
OutFile = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE.yaml", help="Write here; by default to a new NAME.yaml.")
]


def derive(
    name: Name,
    like: Like,
    sm: Sms = None,
    clock_ghz: Clock = None,
    dram_gbps: Bandwidth = None,
    l2_mib: L2 = None,
    power_w: Power = None,
    compute_capability: Capability = None,
    lanes: Lanes = None,
    dram_gib: Memory = None,
    samples: Samples = None,
    out: OutFile = None,
    as_json: options.Json = False,
) -> None:
    """Write the profile of a device from its datasheet, with parameters transferred from calibrated devices.

    Its predictions have the wider intervals of devices that were left out of the calibration. --samples refines it with a
    handful of measurements.
    """
    from iossim.base.errors import OptionError
    from iossim.hardware.derive import derive as derive_profile
    from iossim.hardware.load import device
    from iossim.hardware.write import check_writable, write_profile

    facts: dict[str, float | int | str | None] = {
        "sm_count": sm,
        "boost_clock_ghz": clock_ghz,
        "dram_bandwidth_gbps": dram_gbps,
        "l2_mib": l2_mib,
        "board_power_w": power_w,
        "compute_capability": compute_capability,
        "fp32_lanes_per_sm": lanes,
        "dram_gib": dram_gib,
    }
    profile = derive_profile(name, device(like), facts)
    path = out or Path(f"{name}.yaml")
    if out is None and path.exists():
        raise OptionError(f"{path} is there already; give --out {path} to replace it, or another name")
    check_writable(path)
    if samples is not None:
        profile = _refined(profile, samples)
    write_profile(profile, path)
    if as_json:
        print_json({"profile": str(path), **profile.model_dump(mode="json")})
    else:
        typer.echo(_summary(profile))
    typer.echo(f"wrote {path}; use it with --device {path}", err=True)


def _refined(profile: DeviceProfile, samples: Path) -> DeviceProfile:
    from iossim.calibration.transfer import FEWEST_SAMPLES, refine
    from iossim.measurements.measurement_set import read_measurements

    return refine(profile, read_measurements(samples, profile.name, fewest=FEWEST_SAMPLES))


def _summary(profile: DeviceProfile) -> str:
    sheet = profile.datasheet
    return (
        f"{profile.name}: {profile.architecture}, {profile.sm_count} SMs at {profile.boost_clock_ghz:g} GHz, "
        f"{profile.fp32_tflops:.1f} fp32 TFLOP/s, {profile.dram_bandwidth_gbps:g} GB/s, "
        f"{sheet.l2_bytes.value / (1 << 20):g} MiB L2, {profile.board_power_w:g} W\n{profile.provenance.note}"
    )
