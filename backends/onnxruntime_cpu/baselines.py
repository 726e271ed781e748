"""Baselines of ONNX Runtime without iossim: the whole network in one session, on one thread or all cores."""

from __future__ import annotations

from collections.abc import Sequence

from iossim.backends.onnxruntime_cpu.backend import missing
from iossim.backends.onnxruntime_cpu.measuring import time_programs
from iossim.backends.onnxruntime_cpu.program import open_session, session_options, session_program
from iossim.base.errors import OptionError, Progress, did_you_mean, ignore
from iossim.base.threads import usable_cores
from iossim.execution.backend import BackendError, Samples, Timing
from iossim.execution.made_inputs import made_arrays
from iossim.ir.network import Network

#: Names, and whether the ops of a session run on all cores.
BASELINES = {"onnxruntime-1-thread": False, "onnxruntime": True}


def baseline_names(device: str) -> list[str]:
    """All names; raises BackendError for a device other than ``cpu``."""
    if device != "cpu":
        raise BackendError(f"the baselines of ONNX Runtime run on the CPU, not on {device!r}; leave them out")
    if lacking := missing():
        raise BackendError(lacking)
    return list(BASELINES)


def measure_baselines(
    network: Network, names: Sequence[str], timing: Timing, device: str, progress: Progress = ignore
) -> dict[str, Samples]:
    """Time the whole network in a separate session for each name, rejecting disturbed rounds as for plans.

    Raises OptionError for an unknown name, BackendError for another device, or a network that ONNX Runtime refuses.
    """
    baseline_names(device)
    for name in names:
        if name not in BASELINES:
            raise OptionError(f"baseline {name!r} is not known; {did_you_mean(name, BASELINES)}")
    cores, graph = usable_cores(), network.graph
    found: dict[str, Samples] = {}
    for number, name in enumerate(names):
        threads = len(cores) if BASELINES[name] else 1

        def shown(done: int, total: int, before: int = number) -> None:
            progress(before * total + done, len(names) * total)

        session = open_session(graph, session_options(threads), f"{network.name!r} as a whole")
        program = session_program(session, made_arrays(graph.inputs, graph.types))
        (found[name],) = time_programs([program], [{}], timing, cores, threads, shown)
    return found
