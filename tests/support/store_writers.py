"""Processes that profile with made-up times and say what they were told is kept, to be killed at any point."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from fake_backend import FakeBackend

import iossim
from iossim.cost.measured import cost_model as measured
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.profiling import ProfileOptions, profile, profile_parts
from iossim.cost.measured.record import MeasurementRecord
from iossim.cost.measured.store import MeasurementStore
from iossim.execution.backend import Timing
from iossim.ir.network import Network


class ReportingStore(MeasurementStore):
    """Appends the digests of records to a file once ``add`` has returned."""

    def __init__(self, path: Path, report: Path) -> None:
        super().__init__(path)
        self._report = os.open(report, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, records: Sequence[MeasurementRecord]) -> int:
        new = super().add(records)
        os.write(self._report, b"".join(f"{record.digest}\n".encode() for record in records))
        return new


def profile_again_and_again(network: Network, path: Path, report: Path, chunk: int) -> None:
    """Profile a network, all anew each time, until killed; commits come often, a ``chunk`` of stages each."""
    measured.CHUNK = chunk
    store = ReportingStore(path, report)
    while True:
        model = MeasuredCostModel(FakeBackend(), store, Timing(rounds=5, warm_up=0), again=True)
        profile(network, model, profile_parts(network, model, ProfileOptions()))


@dataclass(frozen=True)
class KillTest:
    """What came of it: digests ``reported`` and ``found``, and how often a writer was killed."""

    kills: int
    reported: frozenset[str]
    found: frozenset[str]

    @property
    def lost(self) -> frozenset[str]:
        return self.reported - self.found


def kill_writers(folder: Path, kills: int, writers: int = 4, chunk: int = 2, seed: int = 0) -> KillTest:
    """Let writers profile into one store, kill them at random moments, and start each again."""
    context = multiprocessing.get_context("fork")  # all that a writer needs is loaded already
    network = iossim.load("squeezenet")
    path = folder / "store.sqlite"
    generator = random.Random(seed)
    reports = [folder / f"report{number}" for number in range(writers)]

    def start(number: int) -> BaseProcess:
        process = context.Process(
            target=profile_again_and_again, args=(network, path, reports[number], chunk), daemon=True
        )
        process.start()
        return process

    processes = [start(number) for number in range(writers)]
    while any(not report.exists() or report.stat().st_size < 500 for report in reports):
        assert all(process.exitcode is None for process in processes), "a writer has failed"
        time.sleep(0.01)
    for _ in range(kills):
        time.sleep(generator.uniform(0.0, 0.15))
        number = generator.randrange(writers)
        assert processes[number].exitcode is None, "a writer has failed"
        processes[number].kill()
        processes[number].join()
        processes[number] = start(number)
    for process in processes:
        process.kill()
        process.join()
    lines = [line for report in reports for line in report.read_text().split("\n")]
    with MeasurementStore(path, read_only=True) as store:
        found = frozenset(record.digest for record in store.records())
    # A line that a kill cut short reported nothing.
    return KillTest(kills, frozenset(line for line in lines if len(line) == 32), found)
