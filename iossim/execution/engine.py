"""How a schedule is run, hence what stands between its stages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError, did_you_mean
from iossim.hardware.compute_capability import SINCE_AMPERE
from iossim.hardware.lowering.kernel import Issue, Libraries

if TYPE_CHECKING:
    from iossim.hardware.profile import DeviceProfile

#: The engine of commands and functions that are told none: :meth:`Engine.named` chooses one for the device.
AUTO = "auto"


class Between(StrEnum):
    """What keeps two stages apart, in a word for legends."""

    SYNCHRONISATION = "synchronisation"  #: the host waits for the device
    FORK_AND_JOIN = "fork and join"  #: nodes of a CUDA graph
    NOTIFICATION = "notification"  #: nothing, but that what reads from another stream waits for it


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What prices, plans and pages ask of an engine: ``between`` the stages; whether it ``is_recorded``, all issued
    before it runs, so that the host costs nothing meanwhile; whether it ``is_session`` of a runtime, whose nodes and
    events cost what the profile says of sessions; whether it ``splits_merged`` convolutions by a copy, as a runtime
    without views does; whether it ``divides_sms`` among the groups of a stage; whether concats and splits lie
    ``in_place`` (:mod:`iossim.execution.in_place`) instead of in buffers of their own.
    ``libraries``: whose kernels it calls before Ampere, and since. ``runs_on_devices``: all backends of devices run
    its plans. ``description``: what it is, in a few words.
    """

    between: Between
    libraries: tuple[Libraries, Libraries]
    description: str
    is_recorded: bool = False
    is_session: bool = False
    splits_merged: bool = False
    divides_sms: bool = False
    in_place: bool = False
    runs_on_devices: bool = False


class Engine(StrEnum):
    """``paper``: a stream a group, issued kernel by kernel; the host waits for the device between two stages, unless
    both have a single group (as the published engine does). ``graph``: one CUDA graph, forked and joined by events.
    ``partition``: such a graph whose stages of several groups run each group on SMs of its own (green contexts, made
    beforehand); backend cupy_cudnn runs it where the driver has them. ``onnxruntime``: the streams of a session of ONNX
    Runtime; nothing is between stages but that a stream waits where it reads what another makes. On a CPU the thread
    that calls spins meanwhile, and has a core to itself. Each calls the libraries of its time.
    """

    PAPER = "paper"
    GRAPH = "graph"
    PARTITION = "partition"
    ONNXRUNTIME = "onnxruntime"

    @property
    def facts(self) -> EngineFacts:
        """What it does, for those who would otherwise ask for its name."""
        return _FACTS[self]

    @property
    def is_recorded(self) -> bool:
        """Whether all was issued before it runs: then the host costs nothing meanwhile."""
        return self.facts.is_recorded

    @property
    def synchronises(self) -> bool:
        """Whether the host waits for the device between two stages of which one has several groups."""
        return self.facts.between is Between.SYNCHRONISATION

    @property
    def has_barriers(self) -> bool:
        """Whether no unit of a stage starts before all of the stage before have ended."""
        return self.facts.between is not Between.NOTIFICATION

    @property
    def issue(self) -> Issue:
        """How the kernels of a network come to the device."""
        return Issue.GRAPH if self.is_recorded else Issue.STREAM

    @property
    def issue_alone(self) -> Issue:
        """How an operator comes to the device that is priced by itself."""
        return Issue.GRAPH if self.is_recorded else Issue.CALLS

    def libraries_on(self, architecture: str) -> Libraries:
        """The age of the libraries that it calls: the published engine links cuDNN 7.6, or 8 where 7 does not run."""
        return self.facts.libraries[architecture in SINCE_AMPERE]

    def on(self, profile: DeviceProfile) -> DeviceProfile:
        """The profile as the kernels of this engine see it: between nodes of a session is not what is between calls."""
        factor = profile.engine.session_gap_factor
        if not self.facts.is_session or factor == 1.0:
            return profile
        parameters = profile.parameters
        gap_us = factor * parameters.kernel_gap_us
        return profile.model_copy(update={"parameters": parameters.model_copy(update={"kernel_gap_us": gap_us})})

    @staticmethod
    def named(name: str, device: DeviceProfile | None = None) -> Engine:
        """The engine of that name; raises OptionError suggesting the nearest one.

        ``auto`` is what frameworks run on the device: one CUDA graph on GPUs since Ampere (compute capability 8.0),
        the paper's engine on older ones, on a CPU, and where no device is given.
        """
        if name == AUTO:
            return Engine.GRAPH if device is not None and device.architecture in SINCE_AMPERE else Engine.PAPER
        known = [AUTO, *(engine.value for engine in Engine)]
        if name not in known:
            raise OptionError(f"unknown engine {name!r}; {did_you_mean(name, known)}")
        return Engine(name)


_COMPILED = (Libraries.COMPILED, Libraries.COMPILED)
_FACTS = {
    Engine.PAPER: EngineFacts(
        Between.SYNCHRONISATION,
        (Libraries.CUDNN_7, Libraries.CUDNN_8),
        "streams, issued by the host",
        runs_on_devices=True,
    ),
    Engine.GRAPH: EngineFacts(
        Between.FORK_AND_JOIN, _COMPILED, "one CUDA graph", is_recorded=True, in_place=True, runs_on_devices=True
    ),
    Engine.PARTITION: EngineFacts(
        Between.FORK_AND_JOIN,
        _COMPILED,
        "one CUDA graph on divided SMs",
        is_recorded=True,
        divides_sms=True,
        in_place=True,
    ),
    Engine.ONNXRUNTIME: EngineFacts(
        Between.NOTIFICATION,
        (Libraries.CUDNN_8, Libraries.CUDNN_8),
        "streams of ONNX Runtime, without barriers",
        is_session=True,
        splits_merged=True,
    ),
}

#: Those that any backend runs.
UNDIVIDED = tuple(engine for engine in Engine if engine.facts.runs_on_devices)
