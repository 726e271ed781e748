"""Whole networks as measured on real devices: one JSON lines file per device, a header and then one run per line.

``benchmarks/gpu_report.py`` writes the files. The run of a schedule contains the whole schedule, so that its prediction
can be recomputed with any model; the run of a baseline has none. Among equal runs the last counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag, ValidationError

from iossim.base.values import TimeUs, Value, first_problem
from iossim.execution.backend import Samples
from iossim.execution.measured_run import LEAST
from iossim.ir.types import Precision
from iossim.measurements.measurement import MeasurementError, unusable
from iossim.measurements.text_files import read_file
from iossim.schedule.schedule import Schedule, StreamSchedule

SCHEMA = "iossim-measured-networks"
VERSION = 1
#: Tolerated error of an output below fp32, relative to its largest value, if the network is not known.
MOST_ROUGH_OUTPUT_ERROR = 5e-2


def _kind(document: object) -> str:
    has_streams = "streams" in document if isinstance(document, dict) else isinstance(document, StreamSchedule)
    return "streams" if has_streams else "stages"


#: A schedule of either kind: errors are reported for the kind that it is.
_AnySchedule = Annotated[
    Annotated[Schedule, Tag("stages")] | Annotated[StreamSchedule, Tag("streams")], Discriminator(_kind)
]


class NetworkHeader(Value):
    """The first line of a file: place and time of its runs."""

    format: Literal["iossim-measured-networks"] = "iossim-measured-networks"
    version: int = VERSION
    #: A shipped device, or the name that its driver gives it.
    device: str = Field(min_length=1)
    driver: str = ""
    #: Day of the recording, ``2026-11-21``.
    date: str = ""
    source: str = ""


class NetworkRun(Value):
    """A network measured as a whole. ``name`` is the scheduler, or the baseline, which has no ``schedule``.

    ``median_us``, ``p10_us`` and ``p90_us`` are over ``rounds``; ``conditions`` are those of the backend's samples.
    """

    model: str
    batch: int = Field(ge=1)
    dtype: str
    engine: str
    backend: str
    name: str
    median_us: Annotated[TimeUs, Field(gt=0)]
    p10_us: Annotated[TimeUs, Field(gt=0)]
    p90_us: Annotated[TimeUs, Field(gt=0)]
    rounds: int = Field(ge=1)
    rejected: int = Field(default=0, ge=0)
    conditions: dict[str, float | str] = Field(default_factory=dict)
    #: Versions of the backend's libraries, by name; and other influences on its times.
    libraries: dict[str, str] = Field(default_factory=dict)
    options: dict[str, str] = Field(default_factory=dict)
    #: Largest difference of an output from the reference's, over the largest value of that output; None if it
    #: was not checked, or is not finite.
    output_error: float | None = Field(default=None, ge=0)
    #: True where the outputs are right, as far as they were checked.
    outputs_right: bool = True
    #: Number of measurements of the search, and its duration.
    measurements: int | None = None
    search_s: float | None = None
    #: Sum of its stages' separate times: repeated back to back, and each with a flushed L2 cache.
    stages_warm_us: TimeUs | None = None
    stages_cold_us: TimeUs | None = None
    schedule: _AnySchedule | None = None

    @property
    def key(self) -> tuple[str, int, str, str, str, str]:
        """The identity of a run: runs of equal key measure the same."""
        return self.model, self.batch, self.dtype, self.engine, self.backend, self.name

    @property
    def wrong_outputs(self) -> str:
        """Description of wrong outputs; empty if they are right or were not checked."""
        if self.outputs_right:
            return ""
        if self.output_error is None:
            return "outputs are not finite"
        return f"outputs are wrong by {self.output_error:.1e} of the largest value"

    @staticmethod
    def of(
        samples: Samples, *, dtype: str, output_error: float | None = None, most: float | None = None, **fields: Any
    ) -> NetworkRun:
        """A run with these samples; ``fields`` are the others. An infinite ``output_error``: outputs are not finite.

        ``most`` is the network's tolerance (:mod:`iossim.execution.measured_run`).
        """
        low, high = np.percentile(samples.times_us, (10, 90)).tolist()
        if most is None:
            most = LEAST if dtype == Precision.FP32 else MOST_ROUGH_OUTPUT_ERROR
        return NetworkRun(
            median_us=samples.median_us,
            p10_us=low,
            p90_us=high,
            rounds=len(samples.times_us),
            rejected=samples.rejected,
            conditions=dict(samples.conditions),
            dtype=dtype,
            output_error=None if output_error == math.inf else output_error,
            outputs_right=output_error is None or output_error <= most,
            **fields,
        )


@dataclass(frozen=True)
class MeasuredNetworks:
    """Contents of one file."""

    path: Path
    header: NetworkHeader
    runs: tuple[NetworkRun, ...]


def run_line(run: NetworkRun) -> str:
    """A run as a line of a file; default values are left out."""
    return json.dumps(run.model_dump(mode="json", exclude_defaults=True), separators=(",", ":")) + "\n"


def header_line(header: NetworkHeader) -> str:
    """The first line of a file."""
    return json.dumps(header.model_dump(mode="json"), separators=(",", ":")) + "\n"


def find_measured_networks(places: Sequence[Path]) -> list[MeasuredNetworks]:
    """The measured networks in files and folders (including subfolders), by path; raises MeasurementError."""
    return [read_measured_networks(path) for path in measured_network_files(places)]


def measured_network_files(places: Sequence[Path]) -> list[Path]:
    """The files of measured networks among files and folders, including subfolders."""
    paths: list[Path] = []
    for place in places:
        paths += sorted((*place.rglob("*.jsonl"), *place.rglob("*.jsonl.gz"))) if place.is_dir() else [place]
    return [path for path in paths if path.is_file() and _is_measured_networks(path)]


def read_measured_networks(path: Path) -> MeasuredNetworks:
    """The contents of a file; raises MeasurementError naming the line and the invalid field."""
    first, *lines = [line for line in read_file(path).splitlines() if line.strip()]
    try:
        header = NetworkHeader.model_validate_json(first)
    except ValidationError as error:
        raise unusable(path, f"header: {first_problem(error)}; correct the header") from None
    if header.version > VERSION:
        raise unusable(path, f"version {header.version} of the format, this iossim reads {VERSION}; update iossim")
    runs: dict[tuple[object, ...], NetworkRun] = {}
    for number, line in enumerate(lines, start=2):
        try:
            run = NetworkRun.model_validate_json(line)
        except ValidationError as error:
            reason = first_problem(error)
            raise unusable(path, f"line {number}: {reason}; correct the line") from None
        runs[run.key] = run
    return MeasuredNetworks(path, header, tuple(runs.values()))


def _is_measured_networks(path: Path) -> bool:
    try:
        return f'"{SCHEMA}"' in read_file(path)[:4096].partition("\n")[0]
    except MeasurementError:
        return False
