"""Effect of another model, or other measurements, on the search's decisions: schedules before and after.

    python benchmarks/decisions_changed.py save FOLDER         # with either version: the four networks on two devices
    python benchmarks/decisions_changed.py compare OLD NEW     # with the version of NEW

For each schedule in both folders: the number of stages of the new one that the old one lacks, and its *regret*, its
excess cost where the new one belongs. ``iossim diff A B`` compares two schedules stage by stage.
"""

from __future__ import annotations

from pathlib import Path

import typer

import iossim
from iossim.schedule.schedule import Schedule
from iossim.tasks.schedule_diff import diff

NETWORKS = ("squeezenet", "inception_v3", "nasnet_a", "randwire")
DEVICES = ("v100-sxm2", "a100-sxm-40gb")
ENGINES = ("paper", "graph")

app = typer.Typer(add_completion=False)


@app.command()
def save(folder: Path) -> None:
    """Write the exact schedules of all networks, devices and engines into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for device in DEVICES:
        for engine in ENGINES:
            for network in NETWORKS:
                found = iossim.optimize(network, device, scheduler="ios-both", engine=engine)
                (folder / f"{network}.{device}.{engine}.json").write_text(found.model_dump_json(indent=1))


@app.command()
def compare(old: Path, new: Path) -> None:
    """Print one line per schedule in both folders."""
    print(
        f"{'network':14} {'device':14} {'engine':6} {'stages changed':>15} {'old us':>9} {'new us':>9} {'regret of old':>14}"
    )
    for path in sorted(new.glob("*.json")):
        before = old / path.name
        if not before.is_file():
            continue
        found = diff(Schedule.read(before), Schedule.read(path))
        other = found.second
        changed = f"{found.decided_otherwise[1]} of {len(other.stages)}"
        regret = "unknown" if found.regrets is None else f"{100 * found.regrets[0]:+.2f}%"
        print(
            f"{other.network:14} {other.device:14} {other.engine:6} {changed:>15} {found.first.latency_us:9.1f} "
            f"{other.latency_us:9.1f} {regret:>14}"
        )


if __name__ == "__main__":
    app()
