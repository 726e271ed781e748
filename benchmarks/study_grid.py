"""A study of 1,920 rows: 4 networks x 12 devices x 8 batch sizes x 5 schedulers, at r = 3 and s = 8.

    python benchmarks/study_grid.py [--workers N ...] [--dask N] [--devices ...] [--batches ...] [--models ...]
    python benchmarks/study_grid.py --models squeezenet --devices all --batches $(seq 138) --workers --dask 2 --kill-after 150

Prints for each run the time, the CPU time, and the peak memory of all its processes together (shared pages counted
once), and whether its files equal those of the first byte for byte.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from iossim.hardware.names import device_names
from iossim.study.axes import Device, Model, Search
from iossim.study.report.report import write_report
from iossim.study.run_directory import DONE, REPORT, RESULTS, SCHEDULES, TABLE
from iossim.study.scenario import Scenario
from iossim.study.sweep import run_study

MODELS = ("squeezenet", "inception_v3", "nasnet_a", "randwire")
DEVICES = (
    "k80", "p4", "p100-pcie-16gb", "v100-sxm2", "t4", "rtx-2080-ti", "rtx-3090", "a100-pcie-40gb", "l4", "rtx-4090",
    "h100-sxm", "jetson-orin",
)  # fmt: skip
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="*", default=[2])
    parser.add_argument("--dask", type=int, default=0, metavar="N", help="a local cluster of N processes, too")
    parser.add_argument("--kill-after", type=float, metavar="SECONDS", help="kill the run on Dask, and resume it")
    parser.add_argument("--report", action="store_true", help="write the report, too")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--devices", nargs="+", default=DEVICES)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    given = parser.parse_args()
    scenario = Scenario(
        units="model",
        name="grid",
        models=[Model(model=name) for name in given.models],
        devices=[Device(device=name) for name in (device_names() if given.devices == ["all"] else given.devices)],
        batch_sizes=list(given.batches),
        searches=[Search(max_group_size=3, max_groups=8)],
    )
    with tempfile.TemporaryDirectory() as folder:
        folders: list[Path] = []
        for count in given.workers:
            folders.append(Path(folder) / f"{count}-workers")
            with _told(folders):
                _run(scenario, folders[-1], given.report, workers=count)
        if given.dask:
            folders.append(Path(folder) / f"dask-{given.dask}")
            with _told(folders), _cluster(given.dask) as address:
                resume = given.kill_after is not None
                if resume:
                    _killed(given.kill_after, scenario, folders[-1], address)
                with _on(address):
                    _run(scenario, folders[-1], given.report, resume=resume)


def _killed(after_s: float, scenario: Scenario, folder: Path, address: str) -> None:
    process = get_context("spawn").Process(target=_begin, args=(scenario, folder, address))
    process.start()
    process.join(after_s)
    process.kill()
    process.join()
    print(f"killed with {sum(1 for _ in (folder / DONE).glob('*.json'))} pieces of work done", flush=True)


def _begin(scenario: Scenario, folder: Path, address: str) -> None:
    with _on(address):
        run_study(scenario, folder)


def _run(scenario: Scenario, folder: Path, report: bool, **options: Any) -> None:
    run = run_study(scenario, folder, **options)
    if report:
        write_report(run, folder / REPORT)


@contextmanager
def _told(folders: list[Path]) -> Iterator[None]:
    """Measure and print the enclosed work; ``folders`` are those written so far, this one last."""
    usage = _Usage()
    begin_s = perf_counter()
    with usage:
        yield
    elapsed_s = perf_counter() - begin_s
    rows = (folders[-1] / TABLE).read_text().count("\n") - 1
    same = "" if len(folders) == 1 else f", {'equal' if _equal(folders[0], folders[-1]) else 'NOT EQUAL'} to the first"
    print(
        f"{folders[-1].name}: {rows} rows in {elapsed_s:.1f} s ({usage.cpu_s:.1f} s of CPUs), peak "
        f"{usage.peak_bytes / 2**20:.0f} MiB of all processes together{same}",
        flush=True,
    )


@contextmanager
def _cluster(count: int) -> Iterator[str]:
    from distributed import LocalCluster

    with LocalCluster(n_workers=count, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


@contextmanager
def _on(address: str) -> Iterator[None]:
    """Studies inside run on the Dask cluster there."""
    from distributed import Client
    from joblib import parallel_config

    with Client(address, set_as_default=False) as client, parallel_config(backend="dask", client=client):
        yield


def _equal(first: Path, second: Path) -> bool:
    names = [name for name in (RESULTS, TABLE) if (first / name).exists()]
    schedules = sorted(path.name for path in (first / SCHEDULES).iterdir())
    if schedules != sorted(path.name for path in (second / SCHEDULES).iterdir()):
        return False
    _, wrong, failed = filecmp.cmpfiles(first / SCHEDULES, second / SCHEDULES, schedules, shallow=False)
    return not wrong and not failed and not filecmp.cmpfiles(first, second, names, shallow=False)[1]


class _Usage:
    """Samples the memory of this process and its descendants, some times per second (Linux)."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._cpu_s: dict[int, float] = {}
        self._before_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def cpu_s(self) -> float:
        return sum(self._cpu_s.values()) - self._before_s

    def __enter__(self) -> None:
        self._look()
        self._before_s = sum(self._cpu_s.values())
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(0.3):
            self._look()

    def _look(self) -> None:
        total = 0
        for process in _family(os.getpid()):
            try:
                rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
                total += 1024 * int(rollup.partition("\nPss:")[2].split()[0])
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except (OSError, IndexError):
                continue  # it has just ended
            self._cpu_s[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        self.peak_bytes = max(self.peak_bytes, total)


def _family(process: int) -> list[int]:
    """A process and all its descendants."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text().split():
            found += _family(int(child))
    return found


if __name__ == "__main__":
    main()
