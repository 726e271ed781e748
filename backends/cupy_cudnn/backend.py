"""The backend itself: plans executed and measured on the first NVIDIA GPU, in fp32 (and TF32), fp16 and bf16.

Sums are fp32 in all of them. Images of 16-bit networks have the layout that suits their channels (option ``layout``).

Importing this module imports neither CuPy nor cuDNN; :func:`missing` names what :func:`create` lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary, finalize

import numpy as np
from numpy.lib.stride_tricks import as_strided

from iossim.backends.cupy_cudnn.algorithms import Algorithms, KeptChoices
from iossim.backends.cupy_cudnn.candidate_timing import CandidateTiming, randomise
from iossim.backends.cupy_cudnn.capture import Lane
from iossim.backends.cupy_cudnn.clock import WorkingClock
from iossim.backends.cupy_cudnn.cublas import WithCublas
from iossim.backends.cupy_cudnn.cudnn_graphs import CudnnGraphs, offers_in_words
from iossim.backends.cupy_cudnn.cudnn_library import begins_here, check_version, make_findable, the_only, version_text
from iossim.backends.cupy_cudnn.driver import Driver, device_count
from iossim.backends.cupy_cudnn.driver_api import GreenContexts, driver_library
from iossim.backends.cupy_cudnn.options import PRECISIONS, CudnnOptions, parsed_options
from iossim.backends.cupy_cudnn.prepared_plan import Part, PreparedPlan, Run, launch_program
from iossim.backends.cupy_cudnn.timing import Stopwatch
from iossim.backends.cupy_cudnn.unit_calls import UnitProgram
from iossim.backends.cupy_cudnn.views import Memory, dense
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.base.errors import OptionError, Progress, first_line, ignore
from iossim.execution.backend import (
    BackendError,
    Choice,
    Choices,
    Context,
    DeviceLostError,
    Divided,
    Fallback,
    Samples,
    Timing,
)
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.lower import lower_stage
from iossim.execution.made_inputs import check_graph, check_inputs
from iossim.execution.measured_run import largest_difference, tolerance
from iossim.execution.memory import with_memory
from iossim.execution.plan import MAIN, Plan, Queue
from iossim.hardware.load import device as load_device
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import Precision
from iossim.measurements.measurement import device_of_product
from iossim.schedule.batch import FASTEST, Strategy, UnitVariant

if TYPE_CHECKING:
    from iossim.backends.simulator.cost_model import SimulatorCostModel

INSTALL = "pip install 'iossim[gpu]' (CUDA 13) or 'iossim[gpu-cuda12]'"
#: Groups of a stage on separate SMs (partition) are streams of green contexts.
ENGINES = (*UNDIVIDED, Engine.PARTITION)
#: Fraction of the free memory for the arenas of plans that are measured together.
ARENA_SHARE = 0.5
Made = TypeVar("Made", bound="CupyCudnnBackend")


def create(precision: Precision, engine: Engine, options: Mapping[str, str]) -> CupyCudnnBackend:
    """The backend; raises OptionError for an unknown option or precision, BackendError if it cannot run here."""
    return created(CupyCudnnBackend, Driver, precision, engine, options)


def created(
    kind: type[Made], driven_by: type[Driver], precision: Precision, engine: Engine, options: Mapping[str, str]
) -> Made:
    """A backend of a given class, on a driver of a given class; raises as :func:`create`."""
    if precision not in PRECISIONS:
        raise OptionError(
            f"backend cupy_cudnn computes in {', '.join(PRECISIONS)}, not in {precision}, for which networks have no "
            "scales here; give `dtype` fp16 or bf16"
        )
    settings = parsed_options(precision, options)
    if reason := missing():
        raise BackendError(f"backend cupy_cudnn cannot run here: {reason}")
    try:
        driver = driven_by()
        if engine.facts.divides_sms:
            GreenContexts(driver_library())  # refused before anything is planned
        library = WithCublas(
            CudnnGraphs(settings), settings.tf32, dict(driver.facts.libraries)["cuda"].partition(".")[0]
        )
        return kind(precision, engine, settings, driver, library)
    except RuntimeError as error:  # the base of both libraries' errors: no context, no handle
        raise BackendError(
            f"backend cupy_cudnn cannot begin on this GPU: {first_line(error)}; see 'nvidia-smi'"
        ) from error


def missing() -> str:
    """The missing requirement, with the remedy: CuPy, its compiler, a GPU with its driver, cuDNN, or its front end.

    Empty if all are there.
    """
    if find_spec("cupy") is None:
        return f"CuPy is not installed; {INSTALL}"
    try:
        devices = device_count()
    except ImportError as error:
        return f"CuPy cannot be imported ({first_line(error)}); {INSTALL}"
    except BackendError as error:
        return f"{error}, with {INSTALL}"
    if not devices:
        return "no NVIDIA GPU with a driver is visible; install its driver, or check CUDA_VISIBLE_DEVICES"
    if compiler := _compiler_missing():
        return f"CUDA's run-time compiler cannot be loaded ({compiler}); pip install nvidia-cuda-nvrtc, or {INSTALL}"
    if find_spec("cudnn") is None:
        return f"nvidia-cudnn-frontend is not installed; {INSTALL}"
    try:
        if reason := begins_here():
            return f"cuDNN does not begin ({reason}); {INSTALL}"
        make_findable()
        import cudnn

        check_version("nvidia-cudnn-frontend", str(cudnn.__version__))
        check_version("nvidia-cudnn", version_text(int(cudnn.backend_version())))
        the_only()
    except BackendError as error:
        return str(error)
    except (ImportError, OSError, RuntimeError) as error:
        return f"cuDNN cannot be loaded ({first_line(error)}); {INSTALL}"
    return ""


def offers() -> list[str]:
    """The calls that cuDNN has on this GPU, a line for each precision; only where it is usable."""
    return [
        *offers_in_words(lambda precision: CudnnGraphs(CudnnOptions(tf32=precision is Precision.TF32))),
        "int8: of networks with scales (QuantizeLinear, QLinearConv), with sums of int32",
        "fp8: of networks with scales; products dequantise their operands first",
        "images of 16 bits: channels last where a network's channels suit it (option layout)",
    ]


def fallbacks(network: Network) -> list[Fallback]:
    """The ops that run on the host, by unit; needs no GPU, and neither CuPy nor cuDNN."""
    last = CudnnOptions().layout_of(network.graph, network.precision) == "nhwc"
    weights = Weights(network.graph, None, last, network.precision is Precision.TF32)
    found: list[Fallback] = []
    for unit in network.units:
        program = _program(network, (unit.name,), Strategy.CONCURRENT, Engine.GRAPH, weights)
        found += [Fallback(name, kind, unit.name, reason) for name, kind, reason in program.fallbacks]
    return found


def _program(
    network: Network, names: tuple[str, ...], strategy: Strategy, engine: Engine, weights: Weights
) -> UnitProgram:
    """The calls of units on buffers of their own; none if they launch nothing."""
    indices = [network.unit_index[name] for name in names]
    stage = lower_stage(network, [indices], strategy, engine, in_place=True)
    programs = (launch_program(network, stage, launch, weights) for launch in stage.launches)
    return next(programs, UnitProgram((), 0))


class CupyCudnnBackend:
    """See :class:`iossim.execution.backend.Backend`. The driver and the library are the boundary to the device."""

    def __init__(
        self, precision: Precision, engine: Engine, options: CudnnOptions, driver: Driver, library: WithCublas
    ) -> None:
        self._precision, self._engine, self.driver, self.library = precision, engine, driver, library
        self._options = options
        self._lanes: dict[tuple[Queue, Part | None], Lane] = {}
        self._weights: WeakKeyDictionary[Network, Weights] = WeakKeyDictionary()
        self._clock = WorkingClock(driver, self.lane(MAIN).stream)
        facts = driver.facts
        libraries = tuple(sorted((*facts.libraries, *library.versions)))
        where = {"device": facts.name, "precision": str(precision), "driver": facts.driver}
        where |= {**dict(libraries), **dict(options.pairs)}
        kept = KeptChoices(options.choices, where)
        timing = CandidateTiming(self.lane(MAIN), self._clock)
        #: Chooser among the ways to run convolutions.
        self.chooser = Algorithms(timing, options.workspace_limit_bytes, options.plans, kept)
        self._stopwatch: Stopwatch | None = None
        self._prices: SimulatorCostModel | None = None
        under = device_of_product(facts.name), str(precision), str(engine), options.layout_for(precision)
        self.context = Context("cupy_cudnn", *under, facts.driver, libraries, options.pairs)

    def context_of(self, network: Network) -> Context:
        """The conditions that times of a network depend on, including the layout of its images."""
        return replace(self.context, layout=self._options.layout_of(network.graph, self._precision))

    def choices(self, network: Network) -> Choices:
        """For each unit or merged stage, the plans of cuDNN that are fastest for its convolutions alone, or a variant.

        An algorithm has one word per convolution, ``fused:PLAN`` or ``apart:PLAN`` (bias and activation in a separate
        kernel); the workspace is all the scratch memory of the launch. Timed on first use.
        """

        @cache
        def choose(units: tuple[str, ...], strategy: Strategy, variant: str = FASTEST) -> Choice:
            with self._told():
                return self.chooser.choice(self._program(network, units, strategy), variant)

        return choose

    def variants(self, network: Network, unit: str) -> tuple[UnitVariant, ...]:
        """Variants of the unit: the fastest plan of each convolution, and plans that hold less of an SM, or fewer SMs.

        A name is the algorithm of :meth:`choices`: cuDNN's engines and knobs. Timed on first use, and kept with the
        choices.
        """
        with self._told():
            return self.chooser.variants(self._program(network, (unit,), Strategy.CONCURRENT))

    def divided(self, network: Network) -> Divided:
        """The SMs of the groups of a stage, divided as its price by this GPU's profile has them."""
        from iossim.backends.simulator.cost_model import SimulatorCostModel

        if self._prices is None:
            self._prices = SimulatorCostModel(
                load_device(self.context.device), self._precision, Engine.PARTITION, of_backend=True
            )
        return self._prices.divided(network)

    def algorithms(self, network: Network, unit: str) -> list[UnitVariant]:
        """The first plans of cuDNN's ranking within the limit, for a unit of one convolution."""
        with self._told():
            return self.chooser.every(self._program(network, (unit,), Strategy.CONCURRENT))

    def execute(self, network: Network, plan: Plan, inputs: Mapping[str, Array]) -> dict[str, Array]:
        check_graph(plan, network)
        check_inputs(inputs, {name: plan.buffers[name].type for name in plan.inputs})
        with self._told():
            run = self._recorded(network, plan)
            prepared = run.prepared
            prepared.poison()
            for name in plan.inputs:
                self._across(prepared, name, inputs[name], into=True)
            run.run()
            return self._outputs(prepared)

    def measure(
        self, network: Network, plans: Sequence[Plan], timing: Timing, progress: Progress = ignore
    ) -> list[Samples]:
        """Time each plan: one of a single graph by events, until its last kernel ends, any other by the host's clock.

        Plans whose memory does not fit the device together are measured in turns. The outputs of the last timed run
        are compared with those of the same calls one by one: raises BackendError if they differ.
        """
        planned = [with_memory(plan) for plan in plans]
        samples: list[Samples] = []
        rounds = timing.warm_up + timing.rounds
        with self._told():
            if self._stopwatch is None:
                self._stopwatch = Stopwatch(self.driver, self.lane(MAIN).stream, self._clock)
            for together in _fitting(planned, ARENA_SHARE * self.driver.free_bytes()):
                before = len(samples)
                made = [self._made_ready(network, plan, seed) for seed, plan in enumerate(together, before)]

                def tell(done: int, total: int, before: int = before) -> None:
                    progress(before * rounds + done, len(plans) * rounds)

                samples += self._stopwatch.measure([run for run, _ in made], timing, tell)
                for run, expected in made:
                    self._check_outputs(network, run, expected)
        return samples

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise failures of the device or of cuDNN as one line: DeviceLostError if nothing can run any more."""
        failures = self.driver.failures
        try:
            yield
        except (*failures, *self.library.refusals) as error:
            reason = first_line(error)
            try:
                self.driver.synchronize()
            except failures as lost:
                raise DeviceLostError(
                    f"the GPU failed: {first_line(lost)}; nothing more runs on it in this process. Begin again in a "
                    "new one, with CUDA_LAUNCH_BLOCKING=1 to see what it was that failed"
                ) from error
            raise BackendError(f"the GPU refused a call: {reason}; take another engine, or fewer options") from error

    def _program(self, network: Network, names: tuple[str, ...], strategy: Strategy) -> UnitProgram:
        return _program(network, names, strategy, self._engine, self._weights_of(network))

    def _made_ready(self, network: Network, plan: Plan, seed: int) -> tuple[Run, dict[str, Array]]:
        """A plan ready to run on random inputs, and its outputs when it runs call by call."""
        check_graph(plan, network)
        prepared = PreparedPlan(self.lane, self.chooser, network, self._weights_of(network), plan)
        self._make_inputs(prepared, seed)
        Run(self.driver, prepared).run()
        expected = self._outputs(prepared)
        run = self._ready(prepared)
        prepared.poison()
        self._make_inputs(prepared, seed)
        return run, expected

    def _recorded(self, network: Network, plan: Plan) -> Run:
        """A plan ready to run under the engine, without inputs yet."""
        prepared = PreparedPlan(self.lane, self.chooser, network, self._weights_of(network), plan)
        if self._engine.is_recorded:
            Run(self.driver, prepared).run()
        return self._ready(prepared)

    def _make_inputs(self, prepared: PreparedPlan, seed: int) -> None:
        for number, name in enumerate(prepared.plan.inputs):
            storage = prepared.plan.buffers[prepared.plan.region(name).storage]
            view = dense(Memory("storage", storage.name), storage.type.shape, dtype=storage.type.dtype)
            self.lane(MAIN).kernel(randomise(view, seed * 31 + number), prepared.address)()
        self.driver.synchronize()

    def _outputs(self, prepared: PreparedPlan) -> dict[str, Array]:
        types = {name: prepared.plan.buffers[name].type for name in prepared.plan.outputs}
        found = {name: np.empty(of_type.shape, of_type.dtype.numpy) for name, of_type in types.items()}
        for name, array in found.items():
            self._across(prepared, name, array, into=False)
        return found

    def _check_outputs(self, network: Network, run: Run, expected: Mapping[str, Array]) -> None:
        found = largest_difference(self._outputs(run.prepared), expected)
        if found.relative > tolerance(network, self._precision, Precision(self._options.sums)):
            raise BackendError(
                f"what was timed of {network.name!r} computes other outputs than the same calls one by one ({found}), "
                "so that its times are worth nothing; try the other `engine`"
            )

    def _ready(self, prepared: PreparedPlan) -> Run:
        return Run(self.driver, prepared, self.lane(MAIN).stream if self._engine.is_recorded else None)

    def lane(self, queue: Queue, part: Part | None = None) -> Lane:
        """The lane of a queue, or of its part of a division of the SMs."""
        if (queue, part) not in self._lanes:
            stream = self.driver.stream() if part is None else self.driver.stream_of_part(*part)
            self._lanes[queue, part] = Lane(self.driver, self.library, stream, self.library.handle(stream))
        return self._lanes[queue, part]

    def _weights_of(self, network: Network) -> Weights:
        if network not in self._weights:
            if network.precision.storage is not self._precision.storage:
                raise BackendError(
                    f"network {network.name!r} is stored in {network.precision.storage}, and this backend was made for "
                    f"{self._precision}; give `dtype` {network.precision.storage}"
                )
            last = self.context_of(network).layout == "nhwc"
            self._weights[network] = Weights(network.graph, self.driver, last, self._options.tf32)
            finalize(network, self._weights[network].makers.clear)
        return self._weights[network]

    def _across(self, prepared: PreparedPlan, name: str, array: Array, *, into: bool) -> None:
        """Move the bits of a buffer from or to the host's array; what lies between its elements stays as it is."""
        view = prepared.view(name)
        bits = f"u{view.dtype.bytes}"  # NumPy strides over no fp8
        address, whole = prepared.address(view), np.empty(view.extent - view.offset, bits)
        if whole.size > view.elements or not into:
            self.driver.read(address, whole)
        own = as_strided(whole, view.shape, [stride * whole.itemsize for stride in view.strides])
        np.copyto(*((own, array.view(bits)) if into else (array.view(bits), own)))
        if into:
            self.driver.write(address, whole)


def _fitting(plans: Sequence[Plan], limit_bytes: float) -> list[list[Plan]]:
    """Consecutive plans whose arenas fit together; one that does not fit by itself is alone."""
    runs: list[list[Plan]] = []
    taken = 0
    for plan in plans:
        if not runs or taken + plan.arena_bytes > limit_bytes:
            runs.append([])
            taken = 0
        runs[-1].append(plan)
        taken += plan.arena_bytes
    return runs


def _compiler_missing() -> str:
    """Reason why kernels cannot be compiled here; empty if they can."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        return first_line(error)
    return ""
