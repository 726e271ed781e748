"""Options of commands that read, search, run or time a single schedule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from iossim.base.errors import OptionError
from iossim.cli.option_groups import ReadingOptions
from iossim.cli.options import MODELS, OUTPUT, OptionGroup, argument, number, option, switch, with_flags

if TYPE_CHECKING:
    from iossim.execution.backend import Timing
    from iossim.ir.network import Network
    from iossim.schedule.schedule import AnySchedule

ScheduleOrModel = Annotated[
    str, argument("SCHEDULE|MODEL", "A schedule.json that optimize wrote, or a model to be scheduled.", MODELS)
]
SavedSchedule = Annotated[Path, argument("SCHEDULE", "A schedule.json that optimize wrote.")]
OtherModel = Annotated[
    str | None, option("--model", "MODEL", "Path of the model, if it has moved since the schedule was saved.")
]
OtherEngine = Annotated[
    str | None,
    option("--engine", "NAME", "auto, paper, graph, partition or onnxruntime; by default the schedule's own."),
]
SchedulerName = Annotated[
    str, option("--scheduler", "NAME", "sequential, greedy, ios-merge, ios-parallel or ios-both; or ios-streams.")
]
DataType = Annotated[str, option("--dtype", "TYPE", "fp32, tf32, fp16, bf16 or int8.")]
Budget = Annotated[
    str | None,
    option(
        "--budget",
        "N|SECONDSs|all",
        "With a backend as --cost-model, how much to measure: a number of stages (default 1000), seconds (60s), or "
        "all.",
    ),
]
OnnxFile = Annotated[
    Path | None,
    option("--onnx", "FILE", "Write the scheduled network, rewritten or not, with its weights as ONNX.", OUTPUT),
]
BackendName = Annotated[
    str,
    option(
        "--backend",
        "NAME",
        "Backend that runs it (see 'iossim doctor'): onnxruntime_cpu, cupy_cudnn ...; NAME:option=value sets an "
        "option.",
    ),
]
Rounds = Annotated[int, number("--rounds", "Timed rounds; each round runs every plan once.")]
WarmUp = Annotated[int, number("--warm-up", "Rounds that run first and are not timed.")]
Seed = Annotated[int, number("--seed", "Seed of the generated inputs and of the order within a round.")]
Cold = Annotated[bool, switch("--cold", "Flush caches before each run, so that inputs and weights come from memory.")]


@dataclass(frozen=True)
class TimingOptions(OptionGroup):
    """Options of timing."""

    PANEL = "Timing"
    rounds: Rounds = 30
    warm_up: WarmUp = 3
    seed: Seed = 0
    cold: Cold = False

    def timing(self) -> Timing:
        """Raises OptionError for an invalid number of rounds or seed."""
        from iossim.execution.backend import Timing

        for name, least in (("rounds", 1), ("warm_up", 0), ("seed", 0)):
            if (value := getattr(self, name)) < least:
                raise OptionError(with_flags(f"`{name}` {value} is too few; give {least} or more"))
        return Timing(self.rounds, self.warm_up, self.seed, self.cold)


def schedule_or_network(
    target: str, model: str | None, reading: ReadingOptions, batch: int | None = None
) -> tuple[AnySchedule | None, Network]:
    """Saved schedule and its network, at another ``batch`` if given; for a model, None and its network. Raises
    OptionError for options that do not apply.
    """
    from iossim import api
    from iossim.schedule.schedule import is_schedule

    if is_schedule(Path(target)):
        if reading != type(reading)():
            raise OptionError(
                f"{target} is a saved schedule, whose model is read as it was; give no options of reading"
            )
        return api.read_any_schedule(target, model, batch)
    if model is not None:
        raise OptionError(f"--model is for a schedule, and {target!r} is none; leave it out")
    return None, reading.network_of_batch(target, batch)
