"""Engines: execution modes of a schedule, and their overhead between stages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError, did_you_mean
from iossim.hardware.compute_capability import SINCE_AMPERE
from iossim.hardware.lowering.kernel import Issue, Libraries

if TYPE_CHECKING:
    from iossim.hardware.profile import DeviceProfile

#: The default engine of commands and functions: :meth:`Engine.named` chooses one for the device.
AUTO = "auto"


class Between(StrEnum):
    """Separation of two stages, in a word for legends."""

    SYNCHRONISATION = "synchronisation"  #: the host waits for the device
    FORK_AND_JOIN = "fork and join"  #: nodes of a CUDA graph
    NOTIFICATION = "notification"  #: nothing, except that consumers of another stream's output wait for it


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Properties of an engine for prices, plans and documentation: the separation ``between`` stages; whether it
    ``is_recorded``, issued completely before it runs, so that the host costs nothing meanwhile; whether it
    ``is_session`` of a runtime, whose nodes and events have the profile's costs of sessions; whether it
    ``splits_merged`` convolutions by a copy, as a runtime without views does; whether it ``divides_sms`` among the
    groups of a stage; whether concats and splits are ``in_place`` (:mod:`iossim.execution.in_place`) instead of in
    buffers of their own. ``libraries``: those that it calls before Ampere, and since. ``runs_on_devices``: all backends
    of devices run its plans. ``description``: a few words about it.
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
    """``paper``: one stream per group, issued kernel by kernel; the host waits for the device between two stages,
    unless both have a single group (as the published engine does). ``graph``: one CUDA graph, forked and joined by
    events. ``partition``: such a graph whose stages of several groups run each group on separate SMs (green contexts,
    made beforehand); backend cupy_cudnn runs it if the driver has them. ``onnxruntime``: the streams of a session of
    ONNX Runtime; stages are not separated, except that a stream waits for inputs made in another. On a CPU the calling
    thread spins meanwhile, and has a core to itself. Each calls the libraries of its time.
    """

    PAPER = "paper"
    GRAPH = "graph"
    PARTITION = "partition"
    ONNXRUNTIME = "onnxruntime"

    @property
    def facts(self) -> EngineFacts:
        """Its properties, for use instead of comparing names."""
        return _FACTS[self]

    @property
    def is_recorded(self) -> bool:
        """True if everything is issued before it runs: then the host costs nothing while it runs."""
        return self.facts.is_recorded

    @property
    def synchronises(self) -> bool:
        """True if the host waits for the device between two stages of which one has several groups."""
        return self.facts.between is Between.SYNCHRONISATION

    @property
    def has_barriers(self) -> bool:
        """True if no unit of a stage starts before all of the previous stage have ended."""
        return self.facts.between is not Between.NOTIFICATION

    @property
    def issue(self) -> Issue:
        """Launch mode of a network's kernels."""
        return Issue.GRAPH if self.is_recorded else Issue.STREAM

    @property
    def issue_alone(self) -> Issue:
        """Launch mode of an operator that is priced alone."""
        return Issue.GRAPH if self.is_recorded else Issue.CALLS

    def libraries_on(self, architecture: str) -> Libraries:
        """The library versions that it calls: the published engine links cuDNN 7.6, or 8 if 7 does not run."""
        return self.facts.libraries[architecture in SINCE_AMPERE]

    def on(self, profile: DeviceProfile) -> DeviceProfile:
        """The profile for this engine's kernels: gaps between nodes of a session differ from those between calls."""
        factor = profile.engine.session_gap_factor
        if not self.facts.is_session or factor == 1.0:
            return profile
        parameters = profile.parameters
        gap_us = factor * parameters.kernel_gap_us
        return profile.model_copy(update={"parameters": parameters.model_copy(update={"kernel_gap_us": gap_us})})

    @staticmethod
    def named(name: str, device: DeviceProfile | None = None) -> Engine:
        """The engine of that name; raises OptionError suggesting the nearest one.

        ``auto`` is the usual mode of frameworks on the device: one CUDA graph on GPUs since Ampere (compute capability
        8.0), the paper's engine on older ones, on a CPU, and if no device is given.
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

#: Engines that any backend runs.
UNDIVIDED = tuple(engine for engine in Engine if engine.facts.runs_on_devices)
