"""Schedules and baselines of one network, run beside each other: the measured counterpart of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from iossim.cost.random import RandomCostModel
from iossim.errors import OptionError, did_you_mean
from iossim.execution.backend import Backend, Samples, Timing
from iossim.execution.measured_run import MeasuredRow, measure_schedules, ratio_of
from iossim.ir.network import Network
from iossim.schedule.schedule import Schedule
from iossim.scheduling.assemble import reprice
from iossim.scheduling.scheduler import Progress, schedule

#: Schedulers whose stages depend on no price.
PLAIN = ("sequential", "greedy")
#: What names all baselines of PyTorch.
TORCH = "torch"


def plain_schedule(network: Network, name: str) -> Schedule:
    """The schedule of a scheduler that looks at no price; the prices in it mean nothing."""
    return schedule(network, RandomCostModel(), name)


def split_names(text: str, option: str) -> tuple[list[str], list[str]]:
    """``sequential,torch`` as schedulers of :data:`PLAIN` and as baselines; raises OptionError naming the unknown one."""
    names = list(dict.fromkeys(filter(None, text.split(","))))
    for name in names:
        if name not in PLAIN and not name.startswith(TORCH):
            raise OptionError(f"{option} {name!r} is not known; {did_you_mean(name, [*PLAIN, TORCH])}")
    return [name for name in names if name in PLAIN], [name for name in names if name not in PLAIN]


def measure_beside(
    network: Network,
    schedules: Mapping[str, Schedule],
    baselines: Sequence[str],
    backend: Backend,
    timing: Timing,
    predicted_us: Mapping[str, float],
    progress: Callable[[str], Progress],
) -> list[MeasuredRow]:
    """A row for each schedule, in interleaved rounds, then one for each baseline; speed-ups are over the first schedule.

    ``torch`` among the baselines stands for all of PyTorch's that run where the backend does. Raises BackendError where
    PyTorch is not installed.
    """
    bar = progress(backend.context.backend)
    taken = measure_schedules(network, list(schedules.values()), backend, timing, bar)
    samples: dict[str, Samples] = dict(zip(schedules, taken, strict=True))
    if baselines:
        samples |= _measure_torch(network, baselines, backend, timing, progress(TORCH))
    first = next(iter(samples.values()))
    return [
        MeasuredRow(name, found, ratio_of(first, found, timing.seed), predicted_us.get(name))
        for name, found in samples.items()
    ]


def predictions(network: Network, schedules: Mapping[str, Schedule], device: str, engine: str) -> dict[str, float]:
    """What the simulator of a device says of each schedule, microseconds."""
    from iossim.api import cost_model

    prices = cost_model("simulator", device, network.precision, engine)
    return {name: reprice(found, network, prices).latency_us for name, found in schedules.items()}


def _measure_torch(
    network: Network, names: Sequence[str], backend: Backend, timing: Timing, progress: Progress
) -> dict[str, Samples]:
    from importlib.util import find_spec

    from iossim.execution.backend import BackendError

    if find_spec("torch") is None:
        raise BackendError(f"{names[0]} needs PyTorch, which is not installed; pip install 'iossim[torch]'")
    from iossim.backends.torch_cuda.baselines import baseline_names, measure_baselines

    place = "cpu" if backend.context.device == "cpu" else "cuda"
    known = baseline_names(place)
    chosen = list(dict.fromkeys(one for name in names for one in (known if name == TORCH else [name])))
    return measure_baselines(network, chosen, timing, place, progress)
