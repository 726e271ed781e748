"""The backend ``onnxruntime_cpu``: plans on the machine's own CPU, units by ONNX Runtime, in fp32.

Its option is ``threads``, the number of threads of an op (1): cores correspond to the SMs of a GPU, so
that with fewer threads than cores there is room for several streams.

Its baselines are ONNX Runtime without iossim: the whole network in one session, on one thread or all cores.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np

from iossim.backends.onnxruntime_cpu.measuring import cpu_model, time_programs
from iossim.backends.onnxruntime_cpu.program import (
    ALGORITHMS,
    BLOCKED,
    PLAIN,
    Sessions,
    bind,
    make_arena,
    open_session,
    session_options,
    session_program,
)
from iossim.backends.onnxruntime_cpu.worker_pool import WorkerPool
from iossim.base.errors import OptionError, PlanError, Progress, did_you_mean, ignore
from iossim.base.threads import usable_cores
from iossim.execution.backend import Backend, BackendError, Choice, Choices, Context, Samples, Timing
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_stage
from iossim.execution.made_inputs import check_inputs, made_arrays, made_inputs
from iossim.execution.memory import with_memory
from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import Precision
from iossim.schedule.batch import FASTEST, Strategy, steps_of

NAME = "onnxruntime_cpu"
#: Op kinds that ONNX Runtime can compute with blocked channels, on images (not on signals or volumes), so that there is
#: a choice of algorithm.
_BLOCKABLE, _IMAGE_RANK = ("conv", "max_pool", "average_pool"), 4
#: Timing and margin of the choice of an algorithm: the plain one must be faster by the margin.
_CHOICE_TIMING = Timing(rounds=9, warm_up=2)
_CHOICE_MARGIN = 0.03


def missing() -> str:
    """Reason why this backend cannot run here, in one line with the remedy; empty if it can."""
    if find_spec("onnxruntime") is None:
        return f"backend {NAME} needs ONNX Runtime, which is not installed; run: pip install 'iossim[cpu]'"
    if not hasattr(os, "sched_setaffinity"):
        return f"backend {NAME} pins threads to cores, which {platform.system()} does not offer; run it on Linux"
    return ""


def create(precision: Precision, engine: Engine, options: Mapping[str, str]) -> Backend:
    """The backend; ``options`` may have ``threads``.

    Raises OptionError for any other, or a value that is not an integer above 0; BackendError for another precision
    than fp32, and if a requirement is missing.
    """
    for name in options:
        if name != "threads":
            raise OptionError(f"backend {NAME} has no option {name!r}; {did_you_mean(name, ['threads'])}")
    text = options.get("threads", "1")
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"option threads={text!r} of backend {NAME} is not possible: give a whole number, 1 or more")
    if precision is not Precision.FP32:
        raise BackendError(f"backend {NAME} computes in fp32 only, not {precision}; load the model with `dtype` fp32")
    if lacking := missing():
        raise BackendError(lacking)
    return OnnxRuntimeCpu(Engine(engine), int(text))


class OnnxRuntimeCpu:
    """Runs and times plans; a :class:`~iossim.execution.backend.Backend`.

    It may use the cores available to the thread that constructs it.
    """

    def __init__(self, engine: Engine, threads: int) -> None:
        self._engine = engine
        self._threads = threads
        self._cores = usable_cores()
        self._chosen: dict[Hashable, Choice] = {}
        self.sessions = Sessions(threads)
        self.context = Context(
            backend=NAME,
            device="cpu",
            precision=str(Precision.FP32),
            engine=str(engine),
            driver=platform.release(),
            libraries=tuple((name, version(name)) for name in ("numpy", "onnxruntime")),
            options=(("cores", str(len(self._cores))), ("processor", cpu_model()), ("threads", str(threads))),
        )

    def choices(self, network: Network) -> Choices:
        """For each unit the algorithm that is faster alone; measured on first use, and kept by signature.

        A variant names an algorithm: a session runs all steps of its unit with it.
        """
        return partial(self._choice, network)

    def execute(self, network: Network, plan: Plan, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """See :meth:`iossim.execution.backend.Backend.execute`."""
        check_inputs(inputs, {name: plan.buffers[name].type for name in plan.inputs})
        planned = with_memory(plan)
        program = bind(planned, network, self.sessions, make_arena(planned.arena_bytes))
        for name in plan.inputs:
            np.copyto(program.inputs[name], inputs[name])
        with WorkerPool(program.streams, self._cores) as pool:
            pool.run(program)
        return {name: array.copy() for name, array in program.outputs.items()}

    def measure(
        self, network: Network, plans: Sequence[Plan], timing: Timing, progress: Progress = ignore
    ) -> list[Samples]:
        """See :meth:`iossim.execution.backend.Backend.measure`.

        All plans use the same arena, sequentially; before each run its inputs are filled, outside the timed interval,
        so that they are in a cache as if just computed (unless ``timing.cold``).
        """
        planned = [with_memory(plan) for plan in plans]
        arena = make_arena(max((plan.arena_bytes for plan in planned), default=0))
        programs = [bind(plan, network, self.sessions, arena) for plan in planned]
        made: dict[str, Array] = {}
        for plan in planned:
            if not made.keys() >= set(plan.inputs):
                made |= made_inputs(plan, network, timing.seed)
        inputs = [{name: made[name] for name in plan.inputs} for plan in planned]
        return time_programs(programs, inputs, timing, self._cores, self._threads, progress)

    def _choice(self, network: Network, units: tuple[str, ...], strategy: Strategy, variant: str = FASTEST) -> Choice:
        if variant:
            steps = set(steps_of(variant))
            if len(steps) > 1 or not steps <= set(ALGORITHMS):
                raise PlanError(
                    f"the schedule runs {'+'.join(units)} as {variant!r}, and backend {NAME} runs a unit as one of "
                    f"{', '.join(ALGORITHMS)}; leave the variant out of the schedule, or name one of these"
                )
            return Choice(steps.pop())
        indices = [network.unit_index[name] for name in units]
        nodes = (node for unit in indices for node in network.unit_nodes(network.units[unit]))
        types = network.graph.types
        if not any(node.op.kind in _BLOCKABLE and len(types[node.outputs[0]].shape) == _IMAGE_RANK for node in nodes):
            return Choice()
        key = (strategy, tuple(network.signatures[unit] for unit in indices))
        if key not in self._chosen:
            plans = [
                lower_stage(network, [indices], strategy, self._engine, choices=_always(Choice(algorithm)))
                for algorithm in ALGORITHMS
            ]
            blocked, plain = (samples.median_us for samples in self.measure(network, plans, _CHOICE_TIMING))
            self._chosen[key] = Choice(PLAIN if plain < (1 - _CHOICE_MARGIN) * blocked else BLOCKED)
        return self._chosen[key]


def _always(choice: Choice) -> Choices:
    return lambda units, strategy, variant=FASTEST: choice


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
