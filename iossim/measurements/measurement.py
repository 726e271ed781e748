"""Measured operators, and measurements of them alone and in stages: values, device, method and conditions."""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from iossim.base.errors import GraphError, IossimError
from iossim.base.values import Value
from iossim.hardware.lowering.kernel import Issue, Libraries
from iossim.hardware.lowering.step import Operand, Step
from iossim.ir.op import Op, Work
from iossim.ir.types import Precision, TensorType

#: Fraction of all shapes that no fit ever uses.
HELD_OUT_FRACTION = 0.3

_HASH_DIGITS = 15  # hexadecimal digits of the hash that decide: nearly as many as a float holds


@dataclass(frozen=True)
class Operator:
    """One op on inputs of given types; raises GraphError if they do not fit, or if there is no output.

    ``kind`` is its name in tables (``conv``, ``linear``, ``gemm``, ``add``, ``relu`` ...): ``linear`` and ``gemm``
    are both :class:`~iossim.ir.ops.matmul.Gemm`. ``weights`` are the indices of the inputs that are weights.
    """

    kind: str
    op: Op
    inputs: tuple[TensorType, ...]
    weights: tuple[int, ...] = ()
    precision: Precision = Precision.FP32

    def __post_init__(self) -> None:
        if any(min(output.shape, default=1) < 1 for output in self.outputs):
            raise GraphError(f"its output {self.outputs[0]} is empty: the kernel does not fit the padded input")

    @cached_property
    def outputs(self) -> tuple[TensorType, ...]:
        return self.op.infer(self.inputs)

    @cached_property
    def work(self) -> Work:
        """Arithmetic, and the bytes of all inputs and outputs, each moved once."""
        return self.op.work(self.inputs, self.outputs)

    @property
    def flops(self) -> int:
        return self.work.flops

    @property
    def bytes(self) -> int:
        return self.work.bytes

    def step(self) -> Step:
        """The step for lowering: a unit of this op alone."""
        operands = tuple(Operand(value, index in self.weights) for index, value in enumerate(self.inputs))
        return Step(self.op, operands, self.outputs, self.flops, self.precision)

    @cached_property
    def key(self) -> str:
        """Op and shapes as readable text, independent of the table's naming.

        Precision and the table's kind are left out: one shape at two precisions, or a layer that one table calls
        ``linear`` and another ``gemm``, is the same work and stays on the same side of a split.
        """
        shapes = ("x".join(map(str, value.shape)) for value in self.inputs)
        return " ".join((self.op.signature, *shapes))

    @cached_property
    def shape_hash(self) -> str:
        """SHA-256 of :attr:`key`, hexadecimal."""
        return hashlib.sha256(self.key.encode()).hexdigest()

    def is_held_out(self, fraction: float = HELD_OUT_FRACTION) -> bool:
        """True where fits leave this shape out for evaluation.

        Only the hash decides: its first 60 bits, read as a fraction of one, are below ``fraction``. So the split is
        the same for every device, data set, order of rows and program run, and larger fractions hold out more.
        """
        return bool(int(self.shape_hash[:_HASH_DIGITS], 16) < fraction * 2 ** (4 * _HASH_DIGITS))


SCHEMA = "iossim-measurements"
VERSION = 1


class MeasurementError(IossimError):
    """A measurement set that cannot be read, or that cannot be right."""


def unusable(place: object, problem: str) -> MeasurementError:
    """The error of a file (or data set) of measurements."""
    return MeasurementError(f"measurements {place}: {problem}")


class Header(Value):
    """Properties common to all measurements of a set."""

    measurement_schema: Literal["iossim-measurements"] = Field(default="iossim-measurements", alias="schema")
    version: Literal[1] = 1
    #: A device's name, as in ``iossim devices list`` if it is shipped.
    device: str = Field(min_length=1)
    #: Name of this recording in reports and in a profile's provenance.
    data_set: str = Field(min_length=1)
    #: Library or driver to its version.
    libraries: dict[str, str] = Field(default_factory=dict)
    host: str = ""
    #: Default precision of rows.
    precision: Precision = Precision.FP32
    time_unit: Literal["us"] = "us"
    #: Times are of single calls that wait for the host, not of back-to-back calls with the host ahead.
    includes_host_overhead: bool = False
    #: The host's overhead changes over the recording, in the order of ``row``.
    host_overhead_drifts: bool = False
    #: Times span a call from start to end: gaps between its kernels and the dispatch floor are included. Otherwise
    #: they are the sum of the durations of the call's kernels, as reported by profilers.
    includes_gaps: bool = True
    #: ``calls``: an operator called repeatedly; ``stream``: a call of a network; ``graph``: a node of a CUDA
    #: graph; ``profiler``: one kernel at a time from flushed caches, its start and end in its duration.
    issue: Issue = Issue.CALLS
    #: Images were stored channels last, as by inference compilers.
    channels_last: bool = False
    #: Locked SM clock of the recording, if it is not the boost clock.
    clock_ghz: float | None = Field(default=None, gt=0)
    #: Rounding of times.
    resolution_us: float = Field(default=0.0, ge=0)
    #: Day of the recording, ``2026-11-21``; empty if unknown.
    date: str = ""
    #: Program, paper or person that is the source of the numbers.
    source: str = ""

    @property
    def called(self) -> Libraries:
        """Libraries whose kernels ran: a compiler's, cuDNN 7 called directly, or others."""
        if "tensorrt" in self.libraries or self.channels_last:
            return Libraries.COMPILED
        cudnn = self.libraries.get("cudnn")
        if not cudnn or "pytorch" in self.libraries:
            return Libraries.CURRENT
        return Libraries.CUDNN_7 if cudnn.startswith("7.") else Libraries.CUDNN_8

    @field_validator("date")
    @classmethod
    def _is_a_day(cls, date: str) -> str:
        if date:
            datetime.date.fromisoformat(date)
        return date


class Extent(NamedTuple):
    """Blocks of a grid, or threads of a block."""

    x: int
    y: int
    z: int

    @property
    def total(self) -> int:
        return self.x * self.y * self.z


@dataclass(frozen=True, slots=True)
class Measurement:
    """The latency of one operator alone, and known details of its execution."""

    operator: Operator
    latency_us: float
    #: Position in the recording, with which the host's overhead drifts.
    row: int | None = None
    #: 90th minus 10th percentile of the samples.
    spread_us: float | None = None
    #: Number of samples whose median is ``latency_us``.
    samples: int | None = None
    algorithm: str = ""
    #: Names of the kernels launched, in order.
    kernels: tuple[str, ...] = ()
    #: Grid and block of the main kernel, the one that takes longest.
    grid: Extent | None = None
    block: Extent | None = None
    #: Every call found its inputs in DRAM, not in L2.
    is_cold: bool = False


@dataclass(frozen=True, slots=True)
class StageMeasurement:
    """The latency of concurrent groups of operators, one stream per group."""

    groups: tuple[tuple[Operator, ...], ...]
    latency_us: float
    row: int | None = None
    spread_us: float | None = None
    samples: int | None = None
    #: Latency of the same operators in one stream.
    serial_us: float | None = None


@dataclass(frozen=True)
class MeasurementSet:
    """Measurements of one recording on one device. ``notes`` list omissions by the reader, a line each.

    ``path`` is the file that they were read from, for error messages.
    """

    header: Header
    measurements: tuple[Measurement, ...] = ()
    stages: tuple[StageMeasurement, ...] = ()
    notes: tuple[str, ...] = ()
    path: Path | None = field(default=None, compare=False)

    @property
    def device(self) -> str:
        return self.header.device

    @property
    def name(self) -> str:
        """The file, or if there is none the data set."""
        return str(self.path or repr(self.header.data_set))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the operators measured alone, sorted."""
        return tuple(sorted({measurement.operator.kind for measurement in self.measurements}))


#: Recorded names of shipped devices; those of drivers as spelled by :func:`device_of_product`.
ALIASES = {
    "v100-dgx1": "v100-sxm2",
    "v100-sxm2-16gb": "v100-sxm2",
    "v100-sxm2-32gb": "v100-sxm2",
    "a100-sxm4-40gb": "a100-sxm-40gb",
    "a100-sxm4-80gb": "a100-sxm-80gb",
    "a100-80gb-pcie": "a100-pcie-80gb",
    "h100-80gb-hbm3": "h100-sxm",
    "h200": "h200-sxm",
    "p100-sxm2-16gb": "p100-sxm2",
    "gtx-titan-x": "titan-x",
    "orin": "jetson-orin",
    "rtx-pro-6000-blackwell-workstation-edition": "rtx-pro-6000",
}


def device_of(path: Path, recorded: str | None, given: str | None) -> str:
    """The device's name: ``recorded``, the file's own, or if it has none ``given``, the user's.

    Raises MeasurementError if both are missing.
    """
    if not (recorded or given):
        raise unusable(path, "the file names no device; give one with `device`")
    return ALIASES.get(recorded, recorded) if recorded else str(given)


def device_of_product(product: str) -> str:
    """A driver's product name in iossim's style: ``Tesla V100-PCIE-32GB`` as ``v100-pcie-32gb``."""
    words = re.split(r"[^a-z0-9]+", product.lower())
    name = "-".join(word for word in words if word not in ("", "nvidia", "tesla", "geforce"))
    return ALIASES.get(name, name)
